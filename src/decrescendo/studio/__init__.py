"""A local web page to plan by eye, extra `studio`. `server` is its door; all computing is the library's."""
