"""What the broker promises, with the whole system on it: clusters, cuts, full disks, backups, damage."""
