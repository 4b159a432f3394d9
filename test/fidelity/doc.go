// Package fidelity holds no code: its tests hold the built multipooler to what
// a session of PostgreSQL does, while the network, its clients and its server
// do what they please. One file is one subject:
//
//	differential_test.go  every reply is equal to PostgreSQL's, in each pool mode
//	fragment_test.go      also when bytes arrive one by one
//	fault_test.go         a fault at every message boundary, on both sides
//	markers_test.go       nobody gets what is somebody else's, under churn
//	regression_test.go    what these have found once, without luck
//	conversation_test.go  what the faults happen to
//	bed_test.go           what the others share
//
// Under the race detector multipooler itself is built with it (package mp).
package fidelity
