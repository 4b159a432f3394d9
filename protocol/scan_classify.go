package protocol

// statement is what the classifier knows about the statement at hand. It reads
// tokens: what the leading words are decides how the head is read, and behind
// the head only calls of functions, names of temporary things and a few pairs
// of words matter.
type statement struct {
	begun   bool   // has a token
	inner   bool   // behind a semicolon that did not end it
	routine bool   // CREATE FUNCTION or PROCEDURE: BEGIN ATOMIC opens a body
	into    bool   // INTO was read, and it does not belong to INSERT or MERGE
	head    head   // what the next word means
	prev    symbol // the token before
	class   Class
	parens  uint32  // open parentheses
	atomic  uint32  // open BEGIN ATOMIC and CASE
	now     Effects // effects of this (inner) statement so far
}

// head is where in its leading words a statement is.
type head uint8

const (
	headStart head = iota
	headDone
	headAlter
	headBegin
	headBeginModes
	headClose
	headCopy
	headCreate
	headDeallocate
	headDeclare
	headDiscard
	headDrop
	headEnd
	headExplain
	headExplainOpen
	headExplainOptions
	headImport
	headPrepare
	headPrepareTransaction
	headReset
	headResetSession
	headSecurity
	headSet
	headSetName
	headSetSession
	headStartTransaction
	headUnlisten
)

// lead is how a statement goes on behind its first word. The words that are
// not here are unknown.
type lead struct {
	class   Class
	head    head
	effects Effects
}

var leads = [symCount]lead{
	symSelect: {ClassSelect, headDone, 0}, symValues: {ClassSelect, headDone, 0},
	symTable: {ClassSelect, headDone, 0}, symWith: {ClassSelect, headDone, 0},
	symInsert: {ClassInsert, headDone, 0}, symUpdate: {ClassUpdate, headDone, 0},
	symDelete: {ClassDelete, headDone, 0}, symMerge: {ClassMerge, headDone, 0},
	symExplain: {ClassExplain, headExplain, 0}, symShow: {ClassShow, headDone, 0},
	symCopy:  {ClassCopy, headCopy, 0},
	symBegin: {ClassBegin, headBegin, EffectTxBegin}, symStart: {ClassBegin, headStartTransaction, 0},
	symCommit: {ClassCommit, headEnd, EffectTxEnd}, symEndWord: {ClassCommit, headEnd, EffectTxEnd},
	symRollback: {ClassRollback, headEnd, EffectTxEnd}, symAbort: {ClassRollback, headEnd, EffectTxEnd},
	symSavepoint: {ClassSavepoint, headDone, EffectSavepoint}, symRelease: {ClassRelease, headDone, EffectSavepoint},
	symPrepare: {ClassPrepare, headPrepare, EffectPrepare}, symExecute: {ClassExecute, headDone, EffectExecute},
	symDeallocate: {ClassDeallocate, headDeallocate, EffectDeallocate},
	symLock:       {ClassLock, headDone, 0}, symTruncate: {ClassTruncate, headDone, 0},
	symVacuum:  {ClassMaintenance, headDone, EffectNoBlock},
	symAnalyze: {ClassMaintenance, headDone, 0}, symAnalyse: {ClassMaintenance, headDone, 0},
	symReindex: {ClassMaintenance, headDone, 0}, symCluster: {ClassMaintenance, headDone, 0},
	symCheckpoint: {ClassMaintenance, headDone, 0}, symRefresh: {ClassMaintenance, headDone, 0},
	symNotify: {ClassNotify, headDone, EffectNotify}, symListen: {ClassListen, headDone, EffectListen},
	symUnlisten: {ClassUnlisten, headUnlisten, EffectUnlisten},
	symComment:  {ClassOther, headDone, 0}, symSecurity: {ClassOther, headSecurity, 0},
	symImport: {ClassOther, headImport, 0},
	symGrant:  {ClassGrant, headDone, 0}, symRevoke: {ClassGrant, headDone, 0}, symReassign: {ClassGrant, headDone, 0},
	symCreate: {ClassCreate, headCreate, 0}, symAlter: {ClassAlter, headAlter, 0}, symDrop: {ClassDrop, headDrop, 0},
	symCall: {ClassCall, headDone, 0}, symDo: {ClassDo, headDone, EffectUnknown},
	symFetch: {ClassFetch, headDone, 0}, symMove: {ClassFetch, headDone, 0},
	symCloseWord: {ClassClose, headClose, EffectClose},
	symDeclare:   {ClassDeclare, headDeclare, EffectDeclare},
	symSet:       {ClassSet, headSet, EffectSet}, symReset: {ClassReset, headReset, EffectSet},
	symDiscard: {ClassDiscard, headDiscard, EffectUnknown}, symLoad: {ClassLoad, headDone, EffectLoad},
}

// objects are the words behind CREATE, ALTER and DROP that start the name of a
// kind of thing that belongs to the database, not to the session.
var objects = [symCount]struct{ create, alter, drop bool }{
	symAccess: {true, true, true}, symAggregate: {true, true, true}, symCast: {true, false, true},
	symCollation: {true, true, true}, symConstraint: {true, false, false}, symConversion: {true, true, true},
	symDatabase: {true, true, true}, symDefault: {true, true, false}, symDomain: {true, true, true},
	symEvent: {true, true, true}, symExtension: {true, true, true}, symForeign: {true, true, true},
	symFunction: {true, true, true}, symGroup: {true, true, true}, symIndex: {true, true, true},
	symLanguage: {true, true, true}, symLarge: {false, true, false}, symMaterialized: {true, true, true},
	symOperator: {true, true, true}, symOwned: {false, false, true}, symPolicy: {true, true, true},
	symProcedural: {true, true, true}, symProcedure: {true, true, true}, symPublication: {true, true, true},
	symRecursive: {true, false, false}, symRole: {true, true, true}, symRoutine: {false, true, true},
	symRule: {true, true, true}, symSchema: {true, true, true}, symSequence: {true, true, true},
	symServer: {true, true, true}, symStatistics: {true, true, true}, symSubscription: {true, true, true},
	symSystem: {false, true, false}, symTable: {true, true, true}, symTablespace: {true, true, true},
	symText: {true, true, true}, symTransform: {true, false, true}, symTrigger: {true, true, true},
	symTrusted: {true, false, false}, symType: {true, true, true}, symUnique: {true, false, false},
	symUnlogged: {true, false, false}, symUser: {true, true, true}, symView: {true, true, true},
}

// identifier takes a word. Quoted ones, and those behind a dot, are names and
// never key words; a name of a function or of a temporary schema remains one.
func (s *Scanner) identifier(sym symbol, quoted bool) {
	if sym == symWord {
		s.token(sym)
		return
	}
	if sym == symTempNS {
		s.now |= EffectTemp
	}
	if (quoted || s.prev == symDot) && sym < symFirstFunction && sym != symRole && sym != symSessionAuthorization {
		sym = symWord
	}
	s.token(sym)
}

// token takes a token of the statement at hand. It is small enough to be
// inlined for those that change nothing.
func (s *Scanner) token(sym symbol) {
	if s.head != headDone || sym > symTempNS {
		s.tell(sym)
	}
	s.prev = sym
}

func (s *Scanner) tell(sym symbol) {
	s.begun = true
	switch sym {
	case symOpen:
		s.parens++
		if s.prev > symFirstFunction {
			s.now |= functionEffects[s.prev]
		}
	case symClose:
		if s.parens > 0 {
			s.parens--
		}
	}
	if s.head == headDone {
		s.inBody(sym)
	} else {
		s.inHead(sym)
	}
}

// semicolon ends the statement, except in parentheses (CREATE RULE) and in a
// BEGIN ATOMIC body. There it starts an inner statement, which is classified
// as if it ran now: so nothing can hide behind parentheses and words that we
// count wrongly.
func (s *Scanner) semicolon() {
	if s.parens == 0 && s.atomic == 0 {
		s.endStatement()
		return
	}
	s.innerStatement()
}

func (s *Scanner) innerStatement() {
	s.endClassification()
	s.effects |= s.now
	s.now, s.inner, s.into, s.head, s.prev = 0, true, false, headStart, symNone
}

// inBody takes a word behind the head.
func (s *Scanner) inBody(sym symbol) {
	switch sym {
	case symInto:
		s.into = s.prev != symInsert && s.prev != symMerge
	case symTemp, symTemporary, symLocal, symGlobal:
		if s.prev == symInto && s.into {
			s.now |= EffectTemp
		}
	case symExecute:
		if s.prev == symAs && (s.class == ClassCreate || s.class == ClassExplain) {
			s.now |= EffectExecute
		}
	case symConcurrently:
		if s.class == ClassCreate || s.class == ClassDrop || s.class == ClassMaintenance {
			s.now |= EffectNoBlock
		}
	case symAtomic:
		if s.routine && s.prev == symBegin && s.parens == 0 {
			s.routine = false
			s.atomic = 1
			s.innerStatement()
		}
	case symCase:
		// As a label (SELECT 1 AS case) it opens nothing.
		if s.atomic > 0 && s.parens == 0 && s.prev != symAs {
			s.atomic++
		}
	case symEndWord:
		if s.atomic > 0 && s.parens == 0 && s.prev != symAs {
			s.atomic--
		}
	}
}

// start takes the first word of a statement.
func (s *Scanner) start(sym symbol) {
	if s.atomic > 0 && s.inner {
		switch sym {
		case symEndWord:
			s.atomic--
			s.head = headDone
			return
		case symReturn:
			s.head = headDone
			return
		}
	}
	switch sym {
	case symOpen, symClose: // (SELECT …), and the end of a rule
		return
	case symEnd:
		return
	}
	l := leads[sym]
	if l.class == ClassNone {
		l = lead{ClassUnknown, headDone, EffectUnknown}
	}
	if s.class == ClassNone {
		s.class = l.class
	}
	s.head = l.head
	s.now |= l.effects
}

// become replaces an effect that the words so far stood for.
func (s *statement) become(was, is Effects) {
	s.now = s.now&^was | is
	s.head = headDone
}

// endClassification tells the head that no more words come.
func (s *Scanner) endClassification() {
	if s.head != headDone {
		s.inHead(symEnd)
	}
}

// inHead takes a token (or the end) while the leading words are read.
func (s *Scanner) inHead(sym symbol) {
	switch s.head {
	case headStart:
		s.start(sym)
	case headSet, headSetName, headSetSession, headReset, headResetSession:
		s.inSet(sym)
	case headBegin, headBeginModes, headStartTransaction, headEnd, headPrepare, headPrepareTransaction:
		s.inTransaction(sym)
	case headCreate, headAlter, headDrop:
		s.inDefinition(sym)
	case headExplain, headExplainOpen, headExplainOptions:
		s.inExplain(sym)
	case headCopy:
		switch {
		case s.parens > 0 || sym != symStdin && sym != symStdout:
		case s.prev == symFrom:
			s.now |= EffectCopyIn
		case s.prev == symTo:
			s.now |= EffectCopyOut
		}
	case headDeclare:
		if sym == symHold && s.prev == symWith {
			s.now |= EffectDeclareHold
		}
		if sym == symFor {
			s.head = headDone
		}
	case headDeallocate:
		if sym == symAll {
			s.become(EffectDeallocate, EffectDeallocateAll)
		}
	case headUnlisten:
		if sym == symStar {
			s.become(EffectUnlisten, EffectUnlistenAll)
		}
	case headClose:
		if sym == symAll {
			s.become(EffectClose, EffectCloseAll)
		}
	case headDiscard:
		switch sym {
		case symAll:
			s.become(EffectUnknown, EffectDiscardAll)
		case symPlans:
			s.become(EffectUnknown, EffectDiscardPlans)
		case symTemp, symTemporary:
			s.become(EffectUnknown, EffectDiscardTemp)
		case symSequences:
			s.become(EffectUnknown, EffectDiscardSequences)
		default:
			s.head = headDone
		}
	case headSecurity:
		s.expect(sym == symLabel)
	case headImport:
		s.expect(sym == symForeign)
	}
}

// expect ends a head of two words that only make sense together.
func (s *Scanner) expect(ok bool) {
	s.head = headDone
	if !ok {
		s.now |= EffectUnknown
	}
}

// inSet reads SET and RESET; EffectSet was assumed. Words such as LOCAL and
// TRANSACTION can also start the name of a setting with a dot in it (SET
// local.x = 1), which the next token tells.
func (s *Scanner) inSet(sym symbol) {
	switch s.head {
	case headSet:
		switch sym {
		case symLocal:
			s.become(EffectSet, EffectSetLocal)
			s.head = headSetName
		case symTransaction, symConstraints:
			s.become(EffectSet, 0)
			s.head = headSetName
		case symSession:
			s.head = headSetSession
		case symRole, symSessionAuthorization:
			s.become(EffectSet, EffectSetRole)
			s.head = headSetName
		default:
			s.head = headDone
		}
	case headSetSession:
		switch sym {
		case symSession: // SET SESSION SESSION AUTHORIZATION
		case symAuthorization:
			s.become(EffectSet, EffectSetRole)
		case symRole, symSessionAuthorization:
			s.become(EffectSet, EffectSetRole)
			s.head = headSetName
		default:
			s.head = headDone
		}
	case headSetName:
		s.head = headDone
		isRole := s.now.Has(EffectSetRole)
		if sym == symDot || (sym == symEqual || sym == symTo) && !isRole {
			s.now |= EffectSet
		}
	case headReset:
		switch sym {
		case symAll:
			s.become(EffectSet, EffectResetAll)
		case symRole, symSessionAuthorization:
			s.become(EffectSet, EffectSetRole)
			s.head = headSetName
		case symSession:
			s.head = headResetSession
		default:
			s.head = headDone
		}
	case headResetSession:
		s.head = headDone
		if sym == symAuthorization {
			s.become(EffectSet, EffectSetRole)
		}
	}
}

// inTransaction reads the commands that start and end transactions.
func (s *Scanner) inTransaction(sym symbol) {
	switch s.head {
	case headStartTransaction:
		s.expect(sym == symTransaction)
		if sym == symTransaction {
			s.now |= EffectTxBegin
			s.head = headBeginModes
		}
	case headBegin:
		s.head = headBeginModes
		if sym != symWork && sym != symTransaction {
			s.inTransaction(sym)
		}
	case headBeginModes:
		s.head = headDone
		if sym != symEnd {
			s.now |= EffectTxModes
		}
	case headEnd:
		switch sym {
		case symWork, symTransaction, symAnd:
		case symChain:
			if s.prev == symAnd {
				s.now |= EffectTxChain
			}
			s.head = headDone
		case symTo:
			s.become(EffectTxEnd, EffectSavepoint)
			s.refine(ClassRollbackTo)
		case symPrepared:
			s.become(EffectTxEnd, EffectTxPrepared)
			s.refine(ClassTwoPhase)
		default:
			s.head = headDone
		}
	case headPrepare:
		s.head = headDone
		if sym == symTransaction {
			s.head = headPrepareTransaction
		}
	case headPrepareTransaction: // a statement can be called "transaction"
		s.head = headDone
		if sym == symString {
			s.become(EffectPrepare, EffectTxEnd|EffectTxPrepared)
			s.refine(ClassTwoPhase)
		}
	}
}

func (s *Scanner) refine(c Class) {
	if !s.inner && s.class != ClassExplain {
		s.class = c
	}
}

// inDefinition reads CREATE, ALTER and DROP.
func (s *Scanner) inDefinition(sym symbol) {
	at := s.head
	s.head = headDone
	switch {
	case at == headCreate && (sym == symOr || sym == symReplace):
		s.head = headCreate
	case at == headCreate && (sym == symTemp || sym == symTemporary || sym == symLocal || sym == symGlobal):
		s.now |= EffectTemp
	case sym == symEnd: // not a statement: a syntax error
	case at == headCreate && objects[sym].create, at == headAlter && objects[sym].alter, at == headDrop && objects[sym].drop:
		s.routine = at == headCreate && (sym == symFunction || sym == symProcedure)
		if sym == symSystem || at != headAlter && (sym == symDatabase || sym == symTablespace) {
			s.now |= EffectNoBlock
		}
	default:
		s.now |= EffectUnknown
	}
}

// inExplain reads up to the statement that is explained. A parenthesis holds
// the options, unless it holds a SELECT.
func (s *Scanner) inExplain(sym symbol) {
	switch s.head {
	case headExplain:
		switch sym {
		case symAnalyze, symAnalyse, symVerbose:
		case symOpen:
			s.head = headExplainOpen
		default:
			s.start(sym)
		}
	case headExplainOpen:
		switch sym {
		case symSelect, symValues, symTable, symWith, symOpen:
			s.head = headDone
		default:
			s.head = headExplainOptions
		}
	case headExplainOptions:
		if sym == symClose && s.parens == 0 {
			s.head = headStart
		}
	}
}
