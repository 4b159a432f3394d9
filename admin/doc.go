// Package admin is what operators see of a running multipooler: the SQL
// console (database "multipooler", alias "pgbouncer"), the HTTP endpoints
// (/metrics, /livez, /readyz, /startupz, a status page) and the metrics.
//
// It knows nothing of sessions, pools or event loops. Package pooler calls it
// and implements Source, a set of snapshots; later packages add console
// commands with Console.Register and Console.RegisterVerb, metrics by
// registering their own collectors on HTTP.Registry, and readiness reasons
// with State.Set.
//
// Nothing here is on the path of a query: every number is collected from a
// Source when somebody asks.
//
// Goroutines: Console.Serve runs one console session on the goroutine it is
// called on; Console.Run (averages) and HTTP.Run (the server) run on theirs
// and return when their context ends, after everything they started has.
package admin
