//go:build race

package mp

// RaceDetector: the tests run under it, so the process does as well.
const RaceDetector = true
