package config

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes.
type Size int64

var sizeUnits = []struct {
	name   string
	factor int64
}{
	// The longest first; PostgreSQL's kB, MB, GB are powers of 1024 too.
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"GB", 1 << 30},
	{"MB", 1 << 20},
	{"kB", 1 << 10},
	{"B", 1},
	{"", 1},
}

func (s Size) String() string {
	for _, u := range sizeUnits[:3] {
		if s != 0 && int64(s)%u.factor == 0 {
			return strconv.FormatInt(int64(s)/u.factor, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// ParseSize reads 64KiB, 16MB, 4096 (all units are powers of 1024).
func ParseSize(text string) (Size, error) {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/u.factor {
			break
		}
		return Size(n * u.factor), nil
	}
	return 0, fmt.Errorf("%q is not a size: write 64KiB, 16MiB or a number of bytes", text)
}

// ParseDuration reads 30s, 1h30m, 250ms, or 0.
func ParseDuration(text string) (time.Duration, error) {
	if text == "0" {
		return 0, nil
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, fmt.Errorf("%q lacks its unit: write %ss or %sms", text, text, text)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration: write 30s, 1h30m, 250ms or 0", text)
	}
	if d < 0 {
		return 0, fmt.Errorf("%q is negative", text)
	}
	return d, nil
}

func formatDuration(d time.Duration) string {
	s := d.String()
	if d == 0 {
		return "0"
	}
	if d%time.Minute == 0 {
		s = strings.TrimSuffix(s, "0s")
	}
	if d%time.Hour == 0 {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// set parses text into the field. Several texts are possible for lists only;
// a list's text may itself be separated by commas.
func (f field) set(texts []string) error {
	text := ""
	if len(texts) > 0 {
		text = texts[len(texts)-1]
	}
	if strings.IndexByte(text, 0) >= 0 {
		return errors.New("a zero byte is not possible")
	}
	switch p := f.value.Addr().Interface().(type) {
	case *[]string:
		var out []string
		for _, t := range texts {
			for s := range strings.SplitSeq(t, ",") {
				if s = strings.TrimSpace(s); s != "" {
					out = append(out, s)
				}
			}
		}
		*p = out
	case *time.Duration:
		d, err := ParseDuration(text)
		if err != nil {
			return err
		}
		*p = d
	case *Size:
		n, err := ParseSize(text)
		if err != nil {
			return err
		}
		*p = n
	case *fs.FileMode:
		n, err := strconv.ParseUint(strings.TrimPrefix(text, "0o"), 8, 32)
		if err != nil || n > 0o777 {
			return fmt.Errorf("%q is not a file mode: write 0700, 0770 or 0777", text)
		}
		*p = fs.FileMode(n)
	case *int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		*p = n
	default:
		if f.value.Kind() != reflect.String {
			panic("bug: no parser for the type of " + f.key)
		}
		f.value.SetString(text)
	}
	return nil
}

// texts is the value as the file would say it, secrets masked; one element
// except for lists.
func (f field) texts() []string {
	switch v := f.value.Interface().(type) {
	case []string:
		return slices.Clone(v)
	case time.Duration:
		return []string{formatDuration(v)}
	case fs.FileMode:
		return []string{fmt.Sprintf("%#o", uint32(v))}
	case fmt.Stringer: // Size, Secret, URL
		return []string{v.String()}
	case int:
		return []string{strconv.Itoa(v)}
	}
	return []string{f.value.String()}
}

func (f field) text() string { return strings.Join(f.texts(), ",") }

// inRange checks min, max and oneof.
func (f field) inRange() error {
	if f.oneof != nil {
		for _, w := range f.oneof {
			if w == f.value.String() {
				return nil
			}
		}
		return fmt.Errorf("%q must be one of %s", f.value.String(), f.words())
	}
	below := f.min != "" && f.value.Int() < f.bound(f.min)
	above := f.max != "" && f.value.Int() > f.bound(f.max)
	switch {
	case below && f.max == "":
		return fmt.Errorf("%s must be at least %s", f.text(), f.min)
	case below || above:
		return fmt.Errorf("%s must be from %s to %s", f.text(), f.min, f.max)
	}
	return nil
}

// bound reads a bound in the field's own notation.
func (f field) bound(s string) int64 {
	b := field{key: f.key, value: reflect.New(f.value.Type()).Elem()}
	if err := b.set([]string{s}); err != nil {
		panic("bug: bound of " + f.key + ": " + err.Error())
	}
	return b.value.Int()
}
