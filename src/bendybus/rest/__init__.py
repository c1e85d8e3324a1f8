"""Messages over HTTP: send, receive, settle, as the service's REST API has them."""
