"""What commands print: messages, JSON, progress bars, tables, and lines of styled text for live screens."""
