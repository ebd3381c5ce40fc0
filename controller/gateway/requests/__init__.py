"""One request from its bytes to its end: routes, authentication, headers, parsing, dispatch, relay."""
