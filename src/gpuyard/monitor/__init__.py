"""Looking at GPUs: where series come from, and what is drawn and told of them."""
