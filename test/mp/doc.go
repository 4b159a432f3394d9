// Package mp runs the product for tests: Start builds cmd/multipooler once per
// test binary, starts it as a process of its own on free ports, waits until it
// says that it has started, and ends it with the test. What a package promises
// counts only when this process keeps it.
//
// The process's log is kept and judged at the end: a panic, a race or one of
// the secrets that the test knows fails the test. The log of a failed test is
// printed.
//
// Start owns one goroutine per process, which reads its log and waits for it;
// it has ended when the test has.
//
// A test binary removes the built program at its end:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(mp.StopAfter(pgtest.StopAfter(m))) }
package mp
