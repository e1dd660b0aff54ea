"""A local web page to plan by eye, extra `studio`. Public API: `server`; all computing is the library's."""
