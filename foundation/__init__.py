"""What every room stands on: errors, configuration files, safe writes, manifests, data from packages."""
