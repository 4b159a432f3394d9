package config

import (
	"reflect"
	"strings"
)

// field is one key of a struct (Config, Target or Override), with a way to its
// value.
type field struct {
	key     string
	seeds   []string
	oneof   []string // nil = any
	min     string
	max     string
	restart bool
	noFile  bool // cannot come from the file
	value   reflect.Value
}

// fields lists the keys of the struct that ptr points to, in the order of
// declaration, nested structs flattened.
func fields(ptr any) []field {
	return appendFields(nil, reflect.ValueOf(ptr).Elem())
}

func appendFields(out []field, v reflect.Value) []field {
	for i := range v.NumField() {
		f, fv := v.Type().Field(i), v.Field(i)
		key, ok := f.Tag.Lookup("key")
		if !ok {
			if f.Type.Kind() == reflect.Struct && f.IsExported() {
				out = appendFields(out, fv)
			}
			continue
		}
		o := field{
			key:     key,
			min:     f.Tag.Get("min"),
			max:     f.Tag.Get("max"),
			restart: f.Tag.Get("reload") == "restart",
			noFile:  f.Tag.Get("from") == "flag",
			value:   fv,
		}
		if s := f.Tag.Get("seed"); s != "" {
			o.seeds = strings.Split(s, ",")
		}
		if s, ok := f.Tag.Lookup("oneof"); ok {
			o.oneof = strings.Split(s, "|")
		}
		out = append(out, o)
	}
	return out
}

// find returns the field of a key.
func find(fs []field, key string) (field, bool) {
	for _, f := range fs {
		if f.key == key {
			return f, true
		}
	}
	return field{}, false
}

// flagName is --a-b without the dashes, envName is MULTIPOOLER_A_B.
func flagName(key string) string { return strings.ReplaceAll(key, "_", "-") }

const ownEnv = "MULTIPOOLER_"

func envName(key string) string { return ownEnv + strings.ToUpper(key) }

// list says whether the field takes several values.
func (f field) list() bool { return f.value.Kind() == reflect.Slice }

// words is the allowed words for a message.
func (f field) words() string {
	var w []string
	for _, s := range f.oneof {
		if s != "" {
			w = append(w, s)
		}
	}
	return strings.Join(w, ", ")
}
