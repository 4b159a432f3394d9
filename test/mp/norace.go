//go:build !race

package mp

const raceDetector = false
