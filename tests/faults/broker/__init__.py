"""Faults of the broker under the whole system: clusters, power cuts, full disks, backups, damage."""
