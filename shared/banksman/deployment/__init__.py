"""What a deployment of NATS consists of: accounts, users, streams and the server's configuration."""
