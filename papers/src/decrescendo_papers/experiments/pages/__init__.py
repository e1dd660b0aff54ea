"""What people look at: pages and figures, rendered from finished results."""
