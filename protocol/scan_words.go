package protocol

// symbol is what the classifier knows about a token. Words have one when it
// matters that they are there; all other words are symWord.
type symbol uint8

const (
	symNone symbol = iota // start of a statement
	symEnd                // end of a statement
	symWord
	symString  // '…' in all its forms, $$…$$
	symOperand // a number, a parameter
	symDot
	symStar
	symEqual
	symOther  // any other punctuation
	symTempNS // an identifier that starts with pg_temp

	// Behind the head of a statement the symbols up to here change nothing.
	symOpen
	symClose

	// Words of one byte value each from here on; symbolNames has the texts.
	symAbort
	symAlter
	symAnalyse
	symAnalyze
	symBegin
	symCall
	symCheckpoint
	symCloseWord
	symCluster
	symComment
	symCommit
	symCopy
	symCreate
	symDeallocate
	symDeclare
	symDelete
	symDiscard
	symDo
	symDrop
	symEndWord
	symExecute
	symExplain
	symFetch
	symGrant
	symImport
	symInsert
	symListen
	symLoad
	symLock
	symMerge
	symMove
	symNotify
	symPrepare
	symReassign
	symRefresh
	symReindex
	symRelease
	symReset
	symReturn
	symRevoke
	symRollback
	symSavepoint
	symSecurity
	symSelect
	symSet
	symShow
	symStart
	symTable
	symTruncate
	symUnlisten
	symUpdate
	symVacuum
	symValues
	symWith

	symAll
	symAnd
	symAs
	symAtomic
	symAuthorization
	symCase
	symChain
	symConcurrently
	symConstraints
	symFor
	symForeign
	symFrom
	symGlobal
	symHold
	symInto
	symLabel
	symLocal
	symOr
	symPlans
	symPrepared
	symReplace
	symRole
	symSequences
	symSession
	symSessionAuthorization
	symStdin
	symStdout
	symTemp
	symTemporary
	symTo
	symTransaction
	symVerbose
	symWork

	symAccess
	symAggregate
	symCast
	symCollation
	symConstraint
	symConversion
	symDatabase
	symDefault
	symDomain
	symEvent
	symExtension
	symFunction
	symGroup
	symIndex
	symLanguage
	symLarge
	symMaterialized
	symOperator
	symOwned
	symPolicy
	symProcedural
	symProcedure
	symPublication
	symRecursive
	symRoutine
	symRule
	symSchema
	symSequence
	symServer
	symStatistics
	symSubscription
	symSystem
	symTablespace
	symText
	symTransform
	symTrigger
	symTrusted
	symType
	symUnique
	symUnlogged
	symUser
	symView

	// Functions that touch the session, when they are called.
	symFirstFunction
	symCurrval
	symDblinkConnect
	symDblinkConnectU
	symLastval
	symNextval
	symPgAdvisoryLock
	symPgAdvisoryLockShared
	symPgAdvisoryUnlock
	symPgAdvisoryUnlockAll
	symPgAdvisoryUnlockShared
	symPgBackupStart
	symPgCopyLogicalSlot
	symPgCopyPhysicalSlot
	symPgCreateLogicalSlot
	symPgCreatePhysicalSlot
	symPgNotify
	symPgOriginSessionSetup
	symPgStartBackup
	symPgTryAdvisoryLock
	symPgTryAdvisoryLockShared
	symSetConfig
	symSetLimit
	symSetseed
	symSetval

	symCount
)

var symbolNames = [symCount]string{
	symAbort: "abort", symAlter: "alter", symAnalyse: "analyse", symAnalyze: "analyze", symBegin: "begin",
	symCall: "call", symCheckpoint: "checkpoint", symCloseWord: "close", symCluster: "cluster",
	symComment: "comment", symCommit: "commit", symCopy: "copy", symCreate: "create",
	symDeallocate: "deallocate", symDeclare: "declare", symDelete: "delete", symDiscard: "discard", symDo: "do",
	symDrop: "drop", symEndWord: "end", symExecute: "execute", symExplain: "explain", symFetch: "fetch",
	symGrant: "grant", symImport: "import", symInsert: "insert", symListen: "listen", symLoad: "load",
	symLock: "lock", symMerge: "merge", symMove: "move", symNotify: "notify", symPrepare: "prepare",
	symReassign: "reassign", symRefresh: "refresh", symReindex: "reindex", symRelease: "release",
	symReset: "reset", symReturn: "return", symRevoke: "revoke", symRollback: "rollback",
	symSavepoint: "savepoint", symSecurity: "security", symSelect: "select", symSet: "set", symShow: "show",
	symStart: "start", symTable: "table", symTruncate: "truncate", symUnlisten: "unlisten", symUpdate: "update",
	symVacuum: "vacuum", symValues: "values", symWith: "with",

	symAll: "all", symAnd: "and", symAs: "as", symAtomic: "atomic", symAuthorization: "authorization",
	symCase: "case", symChain: "chain", symConcurrently: "concurrently", symConstraints: "constraints",
	symFor: "for", symForeign: "foreign", symFrom: "from", symGlobal: "global", symHold: "hold", symInto: "into",
	symLabel: "label", symLocal: "local", symOr: "or", symPlans: "plans", symPrepared: "prepared",
	symReplace: "replace", symRole: "role", symSequences: "sequences", symSession: "session",
	symSessionAuthorization: "session_authorization", symStdin: "stdin", symStdout: "stdout", symTemp: "temp",
	symTemporary: "temporary", symTo: "to", symTransaction: "transaction", symVerbose: "verbose", symWork: "work",

	symAccess: "access", symAggregate: "aggregate", symCast: "cast", symCollation: "collation",
	symConstraint: "constraint", symConversion: "conversion", symDatabase: "database", symDefault: "default",
	symDomain: "domain", symEvent: "event", symExtension: "extension", symFunction: "function", symGroup: "group",
	symIndex: "index", symLanguage: "language", symLarge: "large", symMaterialized: "materialized",
	symOperator: "operator", symOwned: "owned", symPolicy: "policy", symProcedural: "procedural",
	symProcedure: "procedure", symPublication: "publication", symRecursive: "recursive", symRoutine: "routine",
	symRule: "rule", symSchema: "schema", symSequence: "sequence", symServer: "server",
	symStatistics: "statistics", symSubscription: "subscription", symSystem: "system",
	symTablespace: "tablespace", symText: "text", symTransform: "transform", symTrigger: "trigger",
	symTrusted: "trusted", symType: "type", symUnique: "unique", symUnlogged: "unlogged", symUser: "user",
	symView: "view",

	symCurrval: "currval", symDblinkConnect: "dblink_connect", symDblinkConnectU: "dblink_connect_u",
	symLastval: "lastval", symNextval: "nextval", symPgAdvisoryLock: "pg_advisory_lock",
	symPgAdvisoryLockShared: "pg_advisory_lock_shared", symPgAdvisoryUnlock: "pg_advisory_unlock",
	symPgAdvisoryUnlockAll: "pg_advisory_unlock_all", symPgAdvisoryUnlockShared: "pg_advisory_unlock_shared",
	symPgBackupStart: "pg_backup_start", symPgCopyLogicalSlot: "pg_copy_logical_replication_slot",
	symPgCopyPhysicalSlot: "pg_copy_physical_replication_slot", symPgCreateLogicalSlot: "pg_create_logical_replication_slot",
	symPgCreatePhysicalSlot: "pg_create_physical_replication_slot", symPgNotify: "pg_notify",
	symPgOriginSessionSetup: "pg_replication_origin_session_setup", symPgStartBackup: "pg_start_backup",
	symPgTryAdvisoryLock: "pg_try_advisory_lock", symPgTryAdvisoryLockShared: "pg_try_advisory_lock_shared",
	symSetConfig: "set_config", symSetLimit: "set_limit", symSetseed: "setseed", symSetval: "setval",
}

// functionEffects is what a call does. Replication slots may be temporary,
// backups and replication origins belong to the session: we do not model them.
var functionEffects = [symCount]Effects{
	symCurrval: EffectSequenceRead, symLastval: EffectSequenceRead,
	symNextval: EffectSequenceSet, symSetval: EffectSequenceSet,
	symPgAdvisoryLock: EffectAdvisoryLock, symPgAdvisoryLockShared: EffectAdvisoryLock,
	symPgTryAdvisoryLock: EffectAdvisoryLock, symPgTryAdvisoryLockShared: EffectAdvisoryLock,
	symPgAdvisoryUnlock: EffectAdvisoryUnlock, symPgAdvisoryUnlockShared: EffectAdvisoryUnlock,
	symPgAdvisoryUnlockAll: EffectAdvisoryUnlockAll,
	symSetConfig:           EffectSet, symSetLimit: EffectSet,
	symSetseed: EffectSeed, symPgNotify: EffectNotify,
	symDblinkConnect: EffectUnknown, symDblinkConnectU: EffectUnknown,
	symPgBackupStart: EffectUnknown, symPgStartBackup: EffectUnknown, symPgOriginSessionSetup: EffectUnknown,
	symPgCopyLogicalSlot: EffectUnknown, symPgCopyPhysicalSlot: EffectUnknown,
	symPgCreateLogicalSlot: EffectUnknown, symPgCreatePhysicalSlot: EffectUnknown,
}

// wordSlots is the size of the hash table of words: a power of two, at most
// half full.
const wordSlots = 512

// words is the read-only look-up structure over symbolNames.
var words = *newWordTable()

type wordTable struct {
	// lengths has, per first letter, a bit for each length that a word has:
	// most words of a text end here.
	lengths [256]uint64
	slots   [wordSlots]symbol
}

func newWordTable() *wordTable {
	t := new(wordTable)
	for sym, name := range symbolNames {
		if name == "" {
			continue
		}
		t.lengths[name[0]] |= 1 << len(name)
		h := wordHash([]byte(name))
		for t.slots[h] != symNone {
			h = (h + 1) % wordSlots
		}
		t.slots[h] = symbol(sym)
	}
	return t
}

// wordHash ignores ASCII case for letters; what it confuses otherwise, the
// comparison tells apart.
func wordHash(w []byte) uint {
	n := len(w)
	return (uint(w[0]|0x20)*31 + uint(w[n-1]|0x20)*7 + uint(w[n/2]|0x20)*13 + uint(n)*57) % wordSlots
}

const tempPrefix = "pg_temp"

// lookup finds the symbol of an identifier, without regard to ASCII case.
func lookup(w []byte) symbol {
	n := len(w)
	if n == 0 {
		return symWord
	}
	first := folded[w[0]]
	if first == tempPrefix[0] && n >= len(tempPrefix) && foldedEqual(tempPrefix, w[:len(tempPrefix)]) {
		return symTempNS
	}
	if n > maxWord || words.lengths[first]&(1<<n) == 0 {
		return symWord
	}
	for h := wordHash(w); ; h = (h + 1) % wordSlots {
		sym := words.slots[h]
		if sym == symNone {
			return symWord
		}
		if foldedEqual(symbolNames[sym], w) {
			return sym
		}
	}
}

// foldedEqual compares a lower-case name with an identifier.
func foldedEqual(name string, w []byte) bool {
	if len(name) != len(w) {
		return false
	}
	for i := range len(name) {
		if name[i] != folded[w[i]] {
			return false
		}
	}
	return true
}
