//go:build race

package mp

// raceDetector: the tests run under it, so the process does as well.
const raceDetector = true
