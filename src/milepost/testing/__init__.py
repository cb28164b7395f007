"""What tests need: fresh stores, real servers, raw connections."""
