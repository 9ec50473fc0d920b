import fc from 'fast-check'
import t from 'tap'
import {
  isProxyToolCallId,
  restoreId,
  ToolCallIds,
} from '../../../../../src/proxy/session/matching/tool-call-ids.ts'

const LONG = /^call_[0-9a-f]{24}$/
const SHORT = /^[0-9A-Za-z]{9}$/

t.test('an id has the form that the model writes: nine letters and digits, or the long one', async (t) => {
  const ids = new ToolCallIds()
  t.match(ids.draw('abcDEF123'), SHORT)
  for (const own of [undefined, 'functions.f:0', 'abcdefgh', 'abcdefghij', 'abcdefg-1', 'call_0123'])
    t.match(ids.draw(own), LONG, String(own))
})

t.test('a drawn id is told by its check sum', async (t) => {
  const ids = new ToolCallIds()
  for (const own of [undefined, 'abcDEF123']) {
    const drawn = Array.from({ length: 50 }, () => ids.draw(own))
    t.equal(new Set(drawn).size, 50, 'no two are equal')
    t.ok(drawn.every(isProxyToolCallId))
    const changed = drawn.flatMap((id) =>
      Array.from(id, (character, at) => id.slice(0, at) + (character === '0' ? '1' : '0') + id.slice(at + 1)),
    )
    const taken = changed.filter(isProxyToolCallId)
    t.ok(
      taken.length <= changed.length / 100,
      `${taken.length} of ${changed.length} with one character changed`,
    )
  }
})

t.test('ids of others are not drawn ones', async (t) => {
  const id = new ToolCallIds().draw(undefined)
  const others = [
    ...['', 'call_1', 'toolu_01A', 'chatcmpl-tool-0123456789abcdef0123456789abcdef', 'functions.f:0'],
    ...[`x${id}`, `${id}x`, id.toUpperCase(), id.replace('call_', 'call-'), `call_${'0'.repeat(24)}`],
    ...['AAAAAAAAA', 'abcdefghi', '000000000'],
  ]
  for (const other of others) t.notOk(isProxyToolCallId(other), other)
  fc.assert(fc.property(fc.stringMatching(/^[0-9A-Za-z]{1,8}$/), (text) => !isProxyToolCallId(text)))
})

t.test('what the model calls a call is kept, unless an engine made it up', async (t) => {
  const ids = new ToolCallIds()
  t.notOk(ids.hasOwn)
  ids.learn({ a: null, b: 'call_0123', c: 'chatcmpl-tool-1', d: 'toolu_1', e: 'call-1' })
  t.notOk(ids.hasOwn, 'templates teach none of these')
  for (const id of ['a', 'b', 'c', 'd', 'e', 'unknown']) t.equal(ids.findOriginal(id), undefined, id)
  ids.learn({ f: 'functions.f:0', g: 'recall_1', h: 'callback' })
  t.ok(ids.hasOwn)
  t.equal(ids.findOriginal('f'), 'functions.f:0')
  t.equal(ids.findOriginal('g'), 'recall_1', 'an id of an engine begins so')
  t.equal(ids.findOriginal('h'), 'callback', 'and has a mark behind it')
  ids.learn({ i: null })
  t.ok(ids.hasOwn, 'once known, it stays so')
})

t.test('ids are learned from the annotations of turns', async (t) => {
  const ids = new ToolCallIds()
  ids.learnFrom({ annotations: '{}' })
  ids.learnFrom({ annotations: '{"text":"\\"call_ids\\""}' })
  t.equal(ids.bytes, 0)
  ids.learnFrom({ annotations: '{"call_ids":{"a":"functions.f:0","b":null}}' })
  t.equal(ids.findOriginal('a'), 'functions.f:0')
  t.equal(ids.bytes, 400, 'two ids')
  ids.learn({ a: 'functions.f:1' })
  t.equal(ids.bytes, 400, 'one that is known takes no more')
  t.equal(ids.findOriginal('a'), 'functions.f:1')
  ids.addBytes(50)
  t.equal(ids.bytes, 450)
})

t.test('a stray id is one that was drawn, and for no turn that is known', async (t) => {
  const ids = new ToolCallIds()
  const [known, other] = [ids.draw(undefined), new ToolCallIds().draw(undefined)]
  t.ok(ids.isStray(known), 'drawn, and not learned')
  ids.learn({ [known]: null })
  t.notOk(ids.isStray(known))
  t.ok(ids.isStray(other), 'another session may have it')
  t.notOk(ids.isStray('call_1'), 'nobody has drawn this one')
  t.notOk(ids.isComplete)
})

t.test('an id that lost its underscore is the one that was drawn, and no other id changes', async (t) => {
  const ids = new ToolCallIds()
  const [long, short] = [ids.draw(undefined), ids.draw('abcDEF123')]
  const stripped = long.replace('_', '')
  t.equal(restoreId(stripped), long)
  for (const id of [long, short, 'call_1', 'callback', `call${'0'.repeat(24)}`, `${stripped}0`, ''])
    t.equal(restoreId(id), id)
  ids.learn({ [long]: 'functions.f:0' })
  t.equal(ids.findOriginal(stripped), 'functions.f:0')
  t.notOk(ids.isStray(stripped))
  t.ok(new ToolCallIds().isStray(stripped))
})
