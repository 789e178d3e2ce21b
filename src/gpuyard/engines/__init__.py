"""Where jobs run: one small protocol, and the engines that implement it."""
