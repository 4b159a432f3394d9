package admin

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The tables that exist from the start. Names, order and units of the columns
// are PgBouncer's (1.25); what is ours stands behind them.

// columns reads "name name# ...": a # marks int8.
func columns(spec string) []Column {
	var all []Column
	for name := range strings.FieldsSeq(spec) {
		c := Column{Name: strings.TrimSuffix(name, "#")}
		if c.Name != name {
			c.Type = TypeInt
		}
		all = append(all, c)
	}
	return all
}

// snapshot makes Command.Rows of a function that neither waits nor fails.
func snapshot(rows func() [][]Value) func(context.Context) ([][]Value, error) {
	return func(context.Context) ([][]Value, error) { return rows(), nil }
}

func (c *Console) registerTables() {
	add := func(name, help, spec string, rows func() [][]Value) {
		c.Register(Command{
			Name: name, Help: help, Columns: columns(spec),
			Rows: snapshot(rows),
		})
	}
	const socket = `type user database replication state addr port# local_addr local_port#
		connect_time request_time wait# wait_us# close_needed# ptr link remote_pid# tls
		application_name prepared_statements# id# `

	add("POOLS", "user pools with their clients and server connections",
		`database user cl_active# cl_waiting# cl_active_cancel_req# cl_waiting_cancel_req#
		sv_active# sv_active_cancel# sv_being_canceled# sv_idle# sv_used# sv_tested# sv_login#
		maxwait# maxwait_us# pool_mode load_balance_hosts
		cl_idle# cl_pinned# sv_draining# capacity#`, c.poolRows)
	add("CLIENTS", "client connections", socket+"loop# pins", c.clientRows)
	add("SERVERS", "server connections", socket+"loop# settings# pins", c.serverRows)
	add("PINS", "clients that keep their server connection past the transaction, and why",
		"database user client_id# server_pid# reasons since", c.pinRows)
	add("DATABASES", "databases, their limits and current connections",
		`name host port# database force_user pool_size# min_pool_size# reserve_pool_size#
		server_lifetime# pool_mode load_balance_hosts max_connections# current_connections#
		max_client_connections# current_client_connections# paused# disabled#`, c.databaseRows)
	add("USERS", "users, their limits and current connections",
		`name pool_size# reserve_pool_size# pool_mode max_user_connections# current_connections#
		max_user_client_connections# current_client_connections#`, c.userRows)
	add("LISTS", "counts of everything", "list items#", c.listRows)
	add("CONFIG", "effective settings and where they come from", "key value default changeable origin", c.configRows)
	add("VERSION", "version", "version", func() [][]Value { return [][]Value{{Text(c.versionText)}} })
	c.registerStats()
	c.Register(Command{Name: "HELP", Help: "this list", Columns: columns("command description"), Rows: c.helpRows})
}

func ints(values ...int) []Value {
	row := make([]Value, len(values))
	for i, n := range values {
		row[i] = Int(int64(n))
	}
	return row
}

// seconds splits a wait into PgBouncer's two columns: whole seconds and the
// microseconds of the rest.
func seconds(d time.Duration) (sec, us Value) {
	return Int(int64(d / time.Second)), Int((d % time.Second).Microseconds())
}

func (c *Console) poolRows() [][]Value {
	var rows [][]Value
	for _, p := range sortedPools(c.source.Pools()) {
		wait, waitUS := seconds(p.MaxWait)
		row := append([]Value{Text(p.Database), Text(p.User)}, ints(
			// PgBouncer's cl_active includes idle clients.
			p.ClientsActive+p.ClientsIdle, p.ClientsWaiting, p.ActiveCancelRequests, p.WaitingCancelRequests,
			p.ServersActive, p.ServersActiveCancel, p.ServersBeingCanceled, p.ServersIdle,
			0, // sv_used: there is no check delay, an idle connection is usable
			p.ServersTested, p.ServersDialing,
		)...)
		row = append(row, wait, waitUS, Text(p.Mode), Null())
		row = append(row, ints(p.ClientsIdle, p.Pinned, p.ServersDraining, p.Capacity)...)
		rows = append(rows, row)
	}
	return rows
}

// clientPtr and serverPtr stand for PgBouncer's object addresses: what link
// says on one side is ptr on the other.
func clientPtr(id uint64) string { return link("c", id) }
func serverPtr(id uint64) string { return link("s", id) }

func link(prefix string, id uint64) string {
	if id == 0 {
		return ""
	}
	return prefix + strconv.FormatUint(id, 10)
}

func (c *Console) clientRows() [][]Value {
	clients := c.source.Clients()
	slices.SortFunc(clients, func(a, b ClientRow) int { return cmp.Compare(a.ID, b.ID) })
	rows := make([][]Value, 0, len(clients))
	for _, r := range clients {
		wait, waitUS := seconds(r.Wait)
		rows = append(rows, []Value{
			Text("C"), Text(r.User), Text(r.Database), Text("none"), Text(r.State),
			Text(r.Addr), Int(int64(r.Port)), Text(r.LocalAddr), Int(int64(r.LocalPort)),
			timestamp(r.Connected), timestamp(r.Requested), wait, waitUS, boolean(r.CloseNeeded),
			Text(clientPtr(r.ID)), Text(serverPtr(r.Server)), Int(int64(r.RemotePID)), Text(r.TLS),
			Text(r.ApplicationName), Int(int64(r.PreparedStatements)), count(r.ID),
			Int(int64(r.Loop)), Text(strings.Join(r.Pins, ",")),
		})
	}
	return rows
}

func (c *Console) serverRows() [][]Value {
	servers := c.source.Servers()
	slices.SortFunc(servers, func(a, b ServerRow) int { return cmp.Compare(a.ID, b.ID) })
	rows := make([][]Value, 0, len(servers))
	for _, r := range servers {
		rows = append(rows, []Value{
			Text("S"), Text(r.User), Text(r.Database), Text("none"), Text(r.State),
			Text(r.Addr), Int(int64(r.Port)), Text(r.LocalAddr), Int(int64(r.LocalPort)),
			timestamp(r.Connected), timestamp(r.Requested), Int(0), Int(0), boolean(r.CloseNeeded),
			Text(serverPtr(r.ID)), Text(clientPtr(r.Client)), Int(int64(r.RemotePID)), Text(r.TLS),
			Text(r.ApplicationName), Int(int64(r.PreparedStatements)), count(r.ID),
			Int(int64(r.Loop)), count(r.Settings), Text(strings.Join(r.Pins, ",")),
		})
	}
	return rows
}

func (c *Console) pinRows() [][]Value {
	pins := c.source.Pins()
	slices.SortFunc(pins, func(a, b PinRow) int { return cmp.Compare(a.Client, b.Client) })
	rows := make([][]Value, 0, len(pins))
	for _, r := range pins {
		rows = append(rows, []Value{
			Text(r.Database), Text(r.User), count(r.Client), Int(int64(r.ServerPID)),
			Text(strings.Join(r.Reasons, ",")), timestamp(r.Since),
		})
	}
	return rows
}

// load is how many clients and server connections a database or a user has.
type load struct{ clients, servers int }

func (l load) plus(p PoolRow) load {
	return load{
		clients: l.clients + p.clients(),
		servers: l.servers + p.servers(),
	}
}

func (p *PoolRow) clients() int {
	return p.ClientsActive + p.ClientsIdle + p.ClientsWaiting + p.ActiveCancelRequests + p.WaitingCancelRequests
}

// busy are the server connections that serve somebody or are being prepared
// for the next one.
func (p *PoolRow) busy() int {
	return p.ServersActive + p.ServersActiveCancel + p.ServersBeingCanceled + p.ServersTested
}

func (p *PoolRow) servers() int {
	return p.busy() + p.ServersIdle + p.ServersDialing + p.ServersDraining
}

func (c *Console) databaseRows() [][]Value {
	known := make(map[string]DatabaseRow)
	for _, d := range c.source.Databases() {
		known[d.Name] = d
	}
	current := make(map[string]load)
	for _, p := range c.source.Pools() {
		current[p.Database] = current[p.Database].plus(p)
		if _, ok := known[p.Database]; !ok {
			known[p.Database] = DatabaseRow{Name: p.Database, Database: p.Database}
		}
	}
	var rows [][]Value
	for _, name := range slices.Sorted(maps.Keys(known)) {
		d := known[name]
		rows = append(rows, []Value{
			Text(d.Name), textOrNull(d.Host), Int(int64(d.Port)), Text(d.Database), textOrNull(d.ForceUser),
			Int(int64(d.PoolSize)), Int(int64(d.MinPoolSize)), Int(int64(d.ReservePool)),
			Int(int64(d.ServerLifetime / time.Second)), textOrNull(d.Mode), Null(),
			Int(int64(d.MaxConnections)), Int(int64(current[name].servers)),
			Int(int64(d.MaxClients)), Int(int64(current[name].clients)),
			boolean(d.Paused), boolean(d.Disabled),
		})
	}
	return rows
}

func (c *Console) userRows() [][]Value {
	known := make(map[string]UserRow)
	for _, u := range c.source.Users() {
		known[u.Name] = u
	}
	current := make(map[string]load)
	for _, p := range c.source.Pools() {
		current[p.User] = current[p.User].plus(p)
		if _, ok := known[p.User]; !ok {
			known[p.User] = UserRow{Name: p.User}
		}
	}
	var rows [][]Value
	for _, name := range slices.Sorted(maps.Keys(known)) {
		u := known[name]
		size := Null()
		if u.PoolSize > 0 {
			size = Int(int64(u.PoolSize))
		}
		rows = append(rows, []Value{
			Text(u.Name), size, Null(), textOrNull(u.Mode),
			Int(int64(u.MaxConnections)), Int(int64(current[name].servers)),
			Int(int64(u.MaxClients)), Int(int64(current[name].clients)),
		})
	}
	return rows
}

func (c *Console) listRows() [][]Value {
	databases, users := make(map[string]bool), make(map[string]bool)
	for _, d := range c.source.Databases() {
		databases[d.Name] = true
	}
	for _, u := range c.source.Users() {
		users[u.Name] = true
	}
	pools := c.source.Pools()
	var all load
	for _, p := range pools {
		databases[p.Database], users[p.User] = true, true
		all = all.plus(p)
	}
	totals := c.source.Totals()
	var rows [][]Value
	for _, l := range [...]struct {
		name  string
		items int
	}{
		{"databases", len(databases)},
		{"users", len(users)},
		{"peers", 0}, // from here on, zeros are things that do not exist here
		{"pools", len(pools)},
		{"peer_pools", 0},
		{"free_clients", 0},
		{"used_clients", all.clients + totals.LoggingIn},
		{"login_clients", totals.LoggingIn},
		{"free_servers", 0},
		{"used_servers", all.servers},
		{"dns_names", 0},
		{"dns_zones", 0},
		{"dns_queries", 0},
		{"dns_pending", 0},
	} {
		rows = append(rows, []Value{Text(l.name), Int(int64(l.items))})
	}
	return rows
}

func (c *Console) configRows() [][]Value {
	settings := c.source.Config()
	slices.SortFunc(settings, func(a, b ConfigRow) int { return strings.Compare(a.Key, b.Key) })
	rows := make([][]Value, 0, len(settings))
	for _, r := range settings {
		changeable := "no"
		if r.Changeable {
			changeable = "yes"
		}
		rows = append(rows, []Value{Text(r.Key), Text(r.Value), Text(r.Default), Text(changeable), Text(r.Origin)})
	}
	return rows
}
