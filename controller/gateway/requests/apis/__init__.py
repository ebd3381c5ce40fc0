"""The APIs that clients speak: what differs between them on the way of a request, one file for each with forms of its own."""
