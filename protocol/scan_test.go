package protocol

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"
)

var standard = ScanOptions{StandardConforming: true}

// inPieces scans with a cut before each of the given offsets.
func inPieces(sql []byte, opts ScanOptions, cuts ...int) Verdict {
	var s Scanner
	s.Reset(opts)
	from := 0
	for _, cut := range cuts {
		s.Feed(bytes.Clone(sql[from:cut])) // a clone: nothing may be kept
		from = cut
	}
	s.Feed(sql[from:])
	return s.Finish()
}

// cutEverywhere checks that no cut, nor all cuts together, change the verdict.
func cutEverywhere(t interface {
	Helper()
	Fatalf(string, ...any)
}, sql []byte, opts ScanOptions,
) Verdict {
	t.Helper()
	whole := Scan(sql, opts)
	all := make([]int, len(sql))
	for i := range sql {
		all[i] = i
		if got := inPieces(sql, opts, i); got != whole {
			t.Fatalf("%q cut at %d: %+v, whole: %+v", sql, i, got, whole)
		}
	}
	if got := inPieces(sql, opts, all...); got != whole {
		t.Fatalf("%q byte by byte: %+v, whole: %+v", sql, got, whole)
	}
	return whole
}

func TestEachStatementIsClassifiedByItsWords(t *testing.T) {
	const none = Effects(0)
	tests := []struct {
		sql     string
		class   Class
		effects Effects
	}{
		// Nothing but reading and writing.
		{"select 1", ClassSelect, none},
		{"SELECT * FROM t WHERE a = 'set_config(' AND b = $1::int", ClassSelect, none},
		{"((select 1) union (select 2))", ClassSelect, none},
		{"values (1)", ClassSelect, none},
		{"table t", ClassSelect, none},
		{"with x as (insert into t values (1) returning *) select * from x", ClassSelect, none},
		{"insert into temp values (1)", ClassInsert, none},
		{"update t set a = 1", ClassUpdate, none},
		{"delete from t", ClassDelete, none},
		{"merge into temp using s on a = b when matched then delete", ClassMerge, none},
		{"show search_path", ClassShow, none},
		{"lock t", ClassLock, none},
		{"truncate t", ClassTruncate, none},
		{"analyze t", ClassMaintenance, none},
		{"reindex table t", ClassMaintenance, none},
		{"reindex table concurrently t", ClassMaintenance, EffectNoBlock},
		{"vacuum", ClassMaintenance, EffectNoBlock},
		{"cluster", ClassMaintenance, none},
		{"checkpoint", ClassMaintenance, none},
		{"refresh materialized view v", ClassMaintenance, none},
		{"comment on table t is 'x'", ClassOther, none},
		{"security label on table t is 'x'", ClassOther, none},
		{"security definer", ClassOther, EffectUnknown},
		{"import foreign schema s from server x into y", ClassOther, none},
		{"grant execute on function f() to role", ClassGrant, none},
		{"revoke all on t from u", ClassGrant, none},
		{"reassign owned by a to b", ClassGrant, none},
		{"call p(1)", ClassCall, none},
		{"do $$ begin set x = 1; end $$", ClassDo, EffectUnknown},
		{"fetch all from c", ClassFetch, none},
		{"move 1 in c", ClassFetch, none},

		// Explain.
		{"explain select 1", ClassExplain, none},
		{"explain analyze verbose select 1", ClassExplain, none},
		{"explain (analyze, format json) select 1", ClassExplain, none},
		{"explain (analyze, buffers (x)) execute p", ClassExplain, EffectExecute},
		{"explain (select 1)", ClassExplain, none},
		{"explain ((select 1))", ClassExplain, none},
		{"explain execute p", ClassExplain, EffectExecute},
		{"explain analyze create temp table t as select 1", ClassExplain, EffectTemp},
		{"explain create table t as execute p", ClassExplain, EffectExecute},
		{"explain frobnicate", ClassExplain, EffectUnknown},

		// Transactions.
		{"begin", ClassBegin, EffectTxBegin},
		{"BEGIN WORK", ClassBegin, EffectTxBegin},
		{"begin transaction", ClassBegin, EffectTxBegin},
		{"begin isolation level serializable", ClassBegin, EffectTxBegin | EffectTxModes},
		{"begin transaction read only", ClassBegin, EffectTxBegin | EffectTxModes},
		{"start transaction", ClassBegin, EffectTxBegin},
		{"start transaction deferrable", ClassBegin, EffectTxBegin | EffectTxModes},
		{"start replication", ClassBegin, EffectUnknown},
		{"start", ClassBegin, EffectUnknown},
		{"commit", ClassCommit, EffectTxEnd},
		{"end work", ClassCommit, EffectTxEnd},
		{"commit transaction and chain", ClassCommit, EffectTxEnd | EffectTxChain},
		{"commit and no chain", ClassCommit, EffectTxEnd},
		{"rollback", ClassRollback, EffectTxEnd},
		{"abort and chain", ClassRollback, EffectTxEnd | EffectTxChain},
		{"rollback to x", ClassRollbackTo, EffectSavepoint},
		{"rollback work to savepoint x", ClassRollbackTo, EffectSavepoint},
		{"savepoint x", ClassSavepoint, EffectSavepoint},
		{"release x", ClassRelease, EffectSavepoint},
		{"prepare transaction 'x'", ClassTwoPhase, EffectTxEnd | EffectTxPrepared},
		{"commit prepared 'x'", ClassTwoPhase, EffectTxPrepared},
		{"rollback prepared 'x'", ClassTwoPhase, EffectTxPrepared},

		// Settings.
		{"set a = 1", ClassSet, EffectSet},
		{"set session a = 1", ClassSet, EffectSet},
		{"set time zone 'UTC'", ClassSet, EffectSet},
		{"set names 'utf8'", ClassSet, EffectSet},
		{`set "a" = 1`, ClassSet, EffectSet},
		{"set local a = 1", ClassSet, EffectSetLocal},
		{"set local role x", ClassSet, EffectSetLocal},
		{"set local.a = 1", ClassSet, EffectSetLocal | EffectSet},
		{"set transaction read only", ClassSet, none},
		{"set transaction.a = 1", ClassSet, EffectSet},
		{"set constraints all deferred", ClassSet, none},
		{"set constraints . a to 1", ClassSet, EffectSet},
		{"set session characteristics as transaction read only", ClassSet, EffectSet},
		{"set session.a = 1", ClassSet, EffectSet},
		{"set role x", ClassSet, EffectSetRole},
		{"set role = x", ClassSet, EffectSetRole},
		{"set role.a = x", ClassSet, EffectSetRole | EffectSet},
		{`set "ROLE" to x`, ClassSet, EffectSetRole},
		{"set session role x", ClassSet, EffectSetRole},
		{"set session authorization x", ClassSet, EffectSetRole},
		{"set session session authorization x", ClassSet, EffectSetRole},
		{"set session_authorization = x", ClassSet, EffectSetRole},
		{"set search_path = pg_temp, public", ClassSet, EffectSet | EffectTemp},
		{"reset a", ClassReset, EffectSet},
		{"reset all", ClassReset, EffectResetAll},
		{`reset "all"`, ClassReset, EffectSet},
		{"reset role", ClassReset, EffectSetRole},
		{"reset session authorization", ClassReset, EffectSetRole},
		{"reset session_authorization", ClassReset, EffectSetRole},
		{"reset time zone", ClassReset, EffectSet},
		{"select set_config('a', 'b', false)", ClassSelect, EffectSet},
		{"select pg_catalog . SET_CONFIG /* x */ ('a', 'b', false)", ClassSelect, EffectSet},
		{`select "pg_catalog"."set_config"('a', 'b', true)`, ClassSelect, EffectSet},
		{"select set_config from t", ClassSelect, none},
		{`select U&"set\005fconfig"('a', 'b', false)`, ClassSelect, EffectUnknown},

		// Prepared statements and cursors.
		{"prepare p as select 1", ClassPrepare, EffectPrepare},
		{"prepare transaction as select 1", ClassPrepare, EffectPrepare},
		{"prepare p (int) as select set_config($1, '', false)", ClassPrepare, EffectPrepare | EffectSet},
		{"execute p (1)", ClassExecute, EffectExecute},
		{"create table t as execute p", ClassCreate, EffectExecute},
		{"create trigger t before insert on x execute function f()", ClassCreate, none},
		{"deallocate p", ClassDeallocate, EffectDeallocate},
		{"deallocate prepare all", ClassDeallocate, EffectDeallocateAll},
		{`deallocate "all"`, ClassDeallocate, EffectDeallocate},
		{"declare c cursor for select 1", ClassDeclare, EffectDeclare},
		{"declare c no scroll cursor with hold for select 1", ClassDeclare, EffectDeclare | EffectDeclareHold},
		{"declare c cursor without hold for with hold as (select 1) table hold", ClassDeclare, EffectDeclare},
		{"close c", ClassClose, EffectClose},
		{"close all", ClassClose, EffectCloseAll},

		// The rest of the session.
		{"discard all", ClassDiscard, EffectDiscardAll},
		{"discard plans", ClassDiscard, EffectDiscardPlans},
		{"discard temporary", ClassDiscard, EffectDiscardTemp},
		{"discard sequences", ClassDiscard, EffectDiscardSequences},
		{"discard x", ClassDiscard, EffectUnknown},
		{"discard", ClassDiscard, EffectUnknown},
		{"listen c", ClassListen, EffectListen},
		{"unlisten c", ClassUnlisten, EffectUnlisten},
		{"unlisten *", ClassUnlisten, EffectUnlistenAll},
		{"notify c, 'x'", ClassNotify, EffectNotify},
		{"select pg_notify('c', '')", ClassSelect, EffectNotify},
		{"load 'auto_explain'", ClassLoad, EffectLoad},
		{"select pg_advisory_lock(1), pg_try_advisory_lock_shared(2)", ClassSelect, EffectAdvisoryLock},
		{"select pg_advisory_xact_lock(1), pg_try_advisory_xact_lock_shared(2)", ClassSelect, none},
		{"select pg_advisory_unlock(1)", ClassSelect, EffectAdvisoryUnlock},
		{"select pg_advisory_unlock_all()", ClassSelect, EffectAdvisoryUnlockAll},
		{"select setseed(0.5)", ClassSelect, EffectSeed},
		{"select random()", ClassSelect, none},
		{"select nextval('s'), setval('s', 1)", ClassSelect, EffectSequenceSet},
		{"select currval('s'), lastval()", ClassSelect, EffectSequenceRead},
		{"select dblink_connect('x', '')", ClassSelect, EffectUnknown},
		{"select pg_create_logical_replication_slot('x', 'y', true)", ClassSelect, EffectUnknown},
		{"select pg_export_snapshot(), lo_open(1, 2)", ClassSelect, none},

		// Temporary things.
		{"create temp table t (a int)", ClassCreate, EffectTemp},
		{"create local temporary table t (a int)", ClassCreate, EffectTemp},
		{"create or replace temp view v as select 1", ClassCreate, EffectTemp},
		{"create table pg_temp.t (a int)", ClassCreate, EffectTemp},
		{`create function "pg_temp_3".f() returns int return 1`, ClassCreate, EffectTemp},
		{"select 1 into temp t", ClassSelect, EffectTemp},
		{"select 1 into local temporary table t", ClassSelect, EffectTemp},
		{"select 1INTO TEMP t", ClassSelect, EffectTemp},
		{"select 1.INTO TEMP t", ClassSelect, EffectTemp},
		{"select 1e5INTO TEMP t", ClassSelect, EffectTemp},
		{"select 1_000.INTO TEMP t", ClassSelect, EffectTemp},
		{"select 'a'INTO TEMP t", ClassSelect, EffectTemp},
		{"select $1INTO TEMP t", ClassSelect, EffectTemp},
		{"select $1.into from t", ClassSelect, none},
		{"select 1 into t", ClassSelect, none},
		{"with x as (insert into temp values (1)) select 1", ClassSelect, none},

		// Definitions.
		{"create table t (temp int)", ClassCreate, none},
		{"create unlogged table t ()", ClassCreate, none},
		{"create unique index concurrently i on t (a)", ClassCreate, EffectNoBlock},
		{"create or replace function f() returns int language sql as 'set x = 1'", ClassCreate, none},
		{"create database d", ClassCreate, EffectNoBlock},
		{"create variable v as int", ClassCreate, EffectUnknown},
		{"create", ClassCreate, none},
		{"alter table t add a int", ClassAlter, none},
		{"alter system set a = 1", ClassAlter, EffectNoBlock},
		{"alter role r set a = 1", ClassAlter, none},
		{"alter session set a = 1", ClassAlter, EffectUnknown},
		{"drop table t", ClassDrop, none},
		{"drop owned by u", ClassDrop, none},
		{"drop database d", ClassDrop, EffectNoBlock},

		// COPY.
		{"copy t from stdin", ClassCopy, EffectCopyIn},
		{"copy t (a, b) from stdin with (format csv)", ClassCopy, EffectCopyIn},
		{"copy (select a from stdin) to stdout", ClassCopy, EffectCopyOut},
		{"copy t from '/x'", ClassCopy, none},

		// Default deny.
		{"frobnicate", ClassUnknown, EffectUnknown},
		{`"select" 1`, ClassUnknown, EffectUnknown},
		{"1", ClassUnknown, EffectUnknown},
		{"'set'", ClassUnknown, EffectUnknown},
		{"\ufeffselect 1", ClassUnknown, EffectUnknown},
		{"return 1", ClassUnknown, EffectUnknown},
		{"select $ 1", ClassSelect, EffectUnknown},
		{"select $" + strings.Repeat("a", 64) + "$ ; set x = 1", ClassSelect, EffectUnknown},
	}
	for _, tt := range tests {
		t.Run(tt.sql, func(t *testing.T) {
			for _, sql := range []string{
				tt.sql, tt.sql + ";", "/* a */ ; " + tt.sql + " -- b", strings.ReplaceAll(tt.sql, " ", "\n/*/**/*/"),
			} {
				got := cutEverywhere(t, []byte(sql), standard)
				if got.Statements != 1 || got.First != tt.class || got.Last != tt.class || got.Effects != tt.effects || got.Unterminated {
					t.Errorf("%q: got %+v, want %v, %v", sql, got, tt.class, tt.effects)
				}
			}
		})
	}
}

func TestStatementsEndWherePostgresEndsThem(t *testing.T) {
	tests := []struct {
		sql     string
		n       int
		last    Class
		effects Effects
	}{
		{"", 0, ClassNone, 0},
		{" ; -- x\n ;/* ; */;", 0, ClassNone, 0},
		{"select 1; set a = 1; select 2", 3, ClassSelect, EffectSet},
		{"select ';'; select $$;$$; select \";\"", 3, ClassSelect, 0},
		{"select $a$ ; $b$ ; $a$; commit", 2, ClassCommit, EffectTxEnd},
		{"select $a$ $a $$ $a$; commit", 2, ClassCommit, EffectTxEnd},
		{"select $a$ $$a$; commit", 2, ClassCommit, EffectTxEnd},
		{"select a$b$; select $b$ ; $b$", 2, ClassSelect, 0},
		{"select $1$$;$$; commit", 2, ClassCommit, EffectTxEnd},
		{"select 'it''s; ok'; commit", 2, ClassCommit, EffectTxEnd},
		{`select '\'; commit`, 2, ClassCommit, EffectTxEnd},
		{`select e'\'; commit --'; end`, 2, ClassCommit, EffectTxEnd},
		{`select E'a' -- x` + "\n\t'\\'; commit'; end", 2, ClassCommit, EffectTxEnd},
		{`select E'a' '\'; commit --'`, 2, ClassCommit, EffectTxEnd},
		{`select b'1';commit`, 2, ClassCommit, EffectTxEnd},
		{`select n'\';commit`, 2, ClassCommit, EffectTxEnd},
		{`select u&'\';commit`, 2, ClassCommit, EffectTxEnd},
		{`select u&1;commit`, 2, ClassCommit, EffectTxEnd},
		{`select u& 'x;';commit`, 2, ClassCommit, EffectTxEnd},
		{`select u/* ; */'x;';commit`, 2, ClassCommit, EffectTxEnd},
		{`select fe'\';commit`, 2, ClassCommit, EffectTxEnd},
		{`select 1e'\';commit'`, 1, ClassSelect, 0},
		{`select 1e5'\';commit`, 2, ClassCommit, EffectTxEnd},
		{"select 1 +-- ;\n2; commit", 2, ClassCommit, EffectTxEnd},
		{"select 1 */* ; */ 2; commit", 2, ClassCommit, EffectTxEnd},
		{"select 1e--;\n; commit", 2, ClassCommit, EffectTxEnd},
		{"select 1 /* /* ; */ ; */; commit", 2, ClassCommit, EffectTxEnd},
		{"select 1 /*/ ; */; commit", 2, ClassCommit, EffectTxEnd},
		{"select 1 - - 1; commit", 2, ClassCommit, EffectTxEnd},
		{"select 'a'-- ;\r'b;'; commit", 2, ClassCommit, EffectTxEnd},
		{"select 'a'-1; commit", 2, ClassCommit, EffectTxEnd},
		{"create rule r as on insert to t do also (insert into u values (1); notify c); commit", 2, ClassCommit, EffectTxEnd | EffectNotify},
		{"select (1; set a = 1; set local b = 1)", 1, ClassSelect, EffectSet | EffectSetLocal},
		{"create function f() returns int begin atomic select 1; select case when true then 1 end; end; commit", 2, ClassCommit, EffectTxEnd},
		{"create or replace procedure p() begin atomic insert into t values (1); end", 1, ClassCreate, 0},
		{"create function f() returns int begin atomic return 1; end; commit", 2, ClassCommit, EffectTxEnd},
		{"create function f() returns int begin atomic select 1 as case; select t.end from t; end; commit", 2, ClassCommit, EffectTxEnd},
		{"create function begin() returns int language sql as 'select 1'; set a = 1; commit", 3, ClassCommit, EffectSet | EffectTxEnd},
		{"create function f() returns int begin atomic select 1 case; end; set a = 1", 1, ClassCreate, EffectSet},
		{"begin atomic; commit", 2, ClassCommit, EffectTxBegin | EffectTxModes | EffectTxEnd},
		{"\x00", 0, ClassNone, 0},
		{"select 1; commit\x00", 2, ClassCommit, EffectTxEnd},
		{"select 1\x00; commit", 1, ClassSelect, EffectUnknown},
	}
	for _, tt := range tests {
		t.Run(tt.sql, func(t *testing.T) {
			got := cutEverywhere(t, []byte(tt.sql), standard)
			if got.Statements != tt.n || got.Last != tt.last || got.Effects != tt.effects || got.Unterminated {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestBackslashesEscapeWithoutStandardConformingStrings(t *testing.T) {
	sql := []byte(`select '\'; set a = 1; --'; commit`)
	on := cutEverywhere(t, sql, standard)
	off := cutEverywhere(t, sql, ScanOptions{})
	if on.Effects != EffectSet || off.Effects != EffectTxEnd || !on.Backslash || !off.Backslash {
		t.Errorf("on %+v, off %+v", on, off)
	}
	for _, sql := range []string{`select e'\''`, `select 'a', "\", $$\$$, b'\'`} {
		if v := cutEverywhere(t, []byte(sql), standard); v.Backslash {
			t.Errorf("%s does not depend on the setting", sql)
		}
	}
}

func TestTextsThatEndInsideSomethingAreUnknown(t *testing.T) {
	for _, sql := range []string{"select 'a", `select "a`, "select /* a", "select $a$ $a", "select e'\\", "select 'a'\n'b", "select 'a''"} {
		v := cutEverywhere(t, []byte(sql), standard)
		if !v.Unterminated || !v.Effects.Has(EffectUnknown) || v.Statements != 1 {
			t.Errorf("%q: %+v", sql, v)
		}
	}
	for _, sql := range []string{"select 'a'", "select 'a' -- b", "select 'a' -", "select 1 --", "select u", "select u&", "select 1e", "select 1e+", "select 1e-", "select 1_", "select $1", "select a/", "select 'a'--", `select "a"`} {
		if v := cutEverywhere(t, []byte(sql), standard); v.Unterminated || v.Effects != 0 {
			t.Errorf("%q: %+v", sql, v)
		}
	}
}

func TestLongIdentifiersAreNotMistakenForOurs(t *testing.T) {
	for _, tt := range []struct {
		name string
		want Effects
	}{
		{"set_config", EffectSet},
		{"set_config" + strings.Repeat("x", 60), 0},
		{strings.Repeat("x", 70), 0},
		{"pg_temp" + strings.Repeat("x", 70), EffectTemp},
	} {
		for _, quote := range []string{"", `"`} {
			v := cutEverywhere(t, []byte("select "+quote+tt.name+quote+"(1)"), standard)
			if v.Effects != tt.want {
				t.Errorf("%s: %v, want %v", tt.name, v.Effects, tt.want)
			}
		}
	}
}

func TestEveryWordIsFoundInAnyCaseAndNothingElseIs(t *testing.T) {
	for sym, name := range symbolNames {
		if name == "" {
			continue
		}
		for _, w := range []string{name, strings.ToUpper(name), strings.ToUpper(name[:1]) + name[1:]} {
			if got := lookup([]byte(w)); got != symbol(sym) {
				t.Errorf("%s: symbol %d, want %d", w, got, sym)
			}
		}
		for _, w := range []string{name + "x", "x" + name, name[:len(name)-1] + "$", strings.ReplaceAll(name, "_", "\x7f")} {
			if got := lookup([]byte(w)); got == symbol(sym) && w != name {
				t.Errorf("%q was taken for %s", w, name)
			}
		}
	}
}

func TestEffectsAndClassesHaveNames(t *testing.T) {
	if 1<<len(effectNames) != effectsEnd {
		t.Errorf("%d names of effects", len(effectNames))
	}
	if len(classNames) != int(ClassOther)+1 {
		t.Errorf("%d names of classes", len(classNames))
	}
	if got := (EffectSet | EffectTemp | EffectNoBlock).Describe(); got != "set, temp, no transaction block" {
		t.Errorf("got %q", got)
	}
	if got := Effects(0).String() + " " + ClassOther.String() + " " + ClassRollbackTo.String(); got != "none other rollback to" {
		t.Errorf("got %q", got)
	}
}

func TestUnsafeClientEncodingsAreKnown(t *testing.T) {
	for name, want := range map[string]bool{
		"UTF8": true, "utf-8": true, "SQL_ASCII": true, "LATIN1": true, "iso-8859-1": true, "EUC_JP": true, "WIN1252": true,
		"SJIS": false, "Shift_JIS": false, "SHIFT_JIS_2004": false, "BIG5": false, "GBK": false, "UHC": false,
		"GB18030": false, "JOHAB": false, "win932": false, "mskanji": false, "": false, "klingon": false,
	} {
		if ClientEncodingSafe(name) != want {
			t.Errorf("%s: %v, want %v", name, !want, want)
		}
	}
}

func TestTheScannerIsSmallAndAllocatesNothing(t *testing.T) {
	if size := unsafe.Sizeof(Scanner{}); size > 200 {
		t.Errorf("a scanner has %d bytes", size)
	}
	sql := []byte("WITH x AS (SELECT $1::text, 'a''b', $q$ body $q$) SELECT set_config(\"a\", E'\\n', 1.5e7) -- c\n FROM x; /* d */ COMMIT AND CHAIN")
	if n := testing.AllocsPerRun(100, func() {
		inPiecesNoClone(sql)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func inPiecesNoClone(sql []byte) Verdict {
	var s Scanner
	s.Reset(standard)
	s.Feed(sql[:10])
	s.Feed(sql[10:])
	return s.Finish()
}

// fragments are pieces of SQL whose seams are where scanners go wrong.
var fragments = []string{
	"select", "SET", "local", "a", "e", "E", "u", "U&", "n", "b", "x", "B'", "e'", "u&'", `u&"`, "'", "''", `"`, `""`, `\`, `\'`, "$", "$$", "$a$", "$a", "$1",
	"1", "1.", ".5", "1e", "1e+", "1e-", "1e5", "_", "0x1F", "..", ".", "-", "--", "/", "/*", "*/", "*", "+", "=", "(", ")", ";", " ", "\n", "\r", "\t", ",", ":", "::",
	"begin", "atomic", "case", "end", "create", "function", "or", "replace", "into", "temp", "set_config", "pg_temp", "insert", "as", "execute", "and", "chain", "\xc3\xa9", "\x00",
}

func drawSQL(t *rapid.T) []byte {
	return []byte(strings.Join(rapid.SliceOfN(rapid.SampledFrom(fragments), 0, 30).Draw(t, "sql"), ""))
}

func TestNoCutChangesTheVerdict(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cutEverywhere(t, drawSQL(t), ScanOptions{StandardConforming: rapid.Bool().Draw(t, "standard")})
	})
}

func FuzzScanner(f *testing.F) {
	f.Add([]byte("select 'a' -- x\n'b'; create function f() begin atomic select 1; end"), uint16(3), true)
	f.Add([]byte("select e'\\'' , $a$ $b$ $a$, U&\"x\" /* /* */ */ ; set local a.b = 1e5"), uint16(9), false)
	f.Fuzz(func(t *testing.T, sql []byte, cut uint16, standard bool) {
		opts := ScanOptions{StandardConforming: standard}
		whole := Scan(sql, opts)
		at := int(cut) % (len(sql) + 1)
		if got := inPieces(sql, opts, at); got != whole {
			t.Fatalf("%q cut at %d: %+v, whole: %+v", sql, at, got, whole)
		}
		if want := naiveVerdict(sql, opts); whole != want {
			t.Fatalf("%q: %+v, naive: %+v", sql, whole, want)
		}
	})
}

// The yardstick is bytes.IndexByte over the same text in the same run: the
// least that anything that looks at every byte can cost.
func BenchmarkScanner(b *testing.B) {
	for name, sql := range map[string]string{
		"pgbench": "UPDATE pgbench_accounts SET abalance = abalance + -2345 WHERE aid = 123456;",
		"orm":     strings.Repeat(`SELECT "users"."id", "users"."name", "users"."created_at" FROM "users" INNER JOIN "orders" ON "orders"."user_id" = "users"."id" WHERE "users"."tenant" = $1 AND lower("users"."name") LIKE 'a%' ORDER BY 1 LIMIT 10 `, 4),
		"values":  "INSERT INTO t VALUES " + strings.Repeat("(1234, 'some text of a row', 3.25, NULL),", 1000),
		"blob":    "INSERT INTO t VALUES ('" + strings.Repeat("0123456789abcdef", 4<<10) + "')",
	} {
		p := []byte(sql)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(p)))
			b.ReportAllocs()
			for b.Loop() {
				Scan(p, standard)
			}
			scanning := b.Elapsed()
			found, start := 0, time.Now()
			for range b.N {
				found += bytes.IndexByte(p, 0)
			}
			if found != -b.N {
				b.Fatal("a NUL in the text")
			}
			b.ReportMetric(float64(scanning)/float64(time.Since(start)), "x-IndexByte")
		})
	}
}
