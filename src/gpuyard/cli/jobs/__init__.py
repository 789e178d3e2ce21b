"""Commands on jobs: submit and run them, list and change them, explain them."""
