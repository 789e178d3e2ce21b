"""What goes over the wire between daemon and clients: types of requests and answers. Standard library only."""
