// Package certs turns certificate files into crypto/tls configurations and reads
// the files again when they change. Frontend is for the connections that clients
// make to us, Backend for those that we make to servers. Both keep the last good
// generation when new files do not load.
//
// The package runs no goroutine and has no clock: package pooler calls Poll every
// few seconds and Reload on SIGHUP. Everything else may be called from any
// goroutine, is one atomic load, and never touches a file.
//
// Change is noticed by content, not by time stamps: the files are a few KiB, so
// that reading them costs as little as comparing their dates would, and it works
// with the symlink swaps of Kubernetes Secrets and with copies that keep dates.
package certs
