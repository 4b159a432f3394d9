package config

import (
	"fmt"
	"io"
)

// mask stands for a secret wherever one would be printed.
const mask = "****"

// Secret is a string that no print shows: every fmt verb, MarshalText and so
// JSON and zap.Any give the mask. Reveal is the one way to the value.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String is the mask, or "" when there is no secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return mask
}

// Format makes every verb print the mask.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText makes encoders print the mask.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// URL is a target's URL as it was given; prints show it without its password.
type URL string

// Reveal returns the URL with its password.
func (u URL) Reveal() string { return string(u) }

// String is the URL with its password masked.
func (u URL) String() string { return MaskURL(string(u)) }

// Format makes every verb print the masked form.
func (u URL) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, u.String()) }

// MarshalText makes encoders print the masked form.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }
