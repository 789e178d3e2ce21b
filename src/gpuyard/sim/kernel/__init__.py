"""The compiled simulator: drivers in numba's subset, their arrays, and what compiles and calls them."""
