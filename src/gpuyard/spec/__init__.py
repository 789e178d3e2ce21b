"""What a job asks for, and the notations in which people write it. Standard library only."""
