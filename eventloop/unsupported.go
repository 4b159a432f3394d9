//go:build !linux

// Package eventloop needs epoll: the data plane is built for Linux only.
package eventloop

// The next line stops the build with a readable error on other systems.
var _ = multipooler_runs_on_Linux_only_because_its_event_loops_need_epoll
