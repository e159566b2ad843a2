"""What one tenant may use of what all share: places, requests per second, stored messages and bytes."""
