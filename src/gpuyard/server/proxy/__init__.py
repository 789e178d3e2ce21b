"""The web page behind the API's authentication: its process, its requests, its websockets."""
