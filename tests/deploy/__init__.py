"""Images and containers of compose.yaml, on a real engine."""
