import t from 'tap'
import {
  decodeSessionId,
  encodeSessionId,
  isSessionId,
  parseSessionId,
  RESERVED_SEGMENTS,
} from '../../../../../src/proxy/session/state/session-id.ts'

const IDS = [
  'a',
  'a'.repeat(512),
  'é'.repeat(256),
  'AZaz09._~:-',
  '...',
  'health2',
  'Sessions',
  'harbor/hello-world:0',
  'a/v1/chat/completions',
  'a/sessions',
  'a+b c@d,e;f=g&h?i#j%2Fk',
  "it's \\ (so) *",
  '日本/🙂',
]

t.test('ids have 1 to 512 bytes of any characters that a URL can contain, including slashes', async (t) => {
  for (const id of IDS) t.equal(parseSessionId(id), id)
  for (const id of ['', 'a'.repeat(513), 'é'.repeat(257)]) {
    t.equal(isSessionId(id), false, id)
    t.throws(() => parseSessionId(id), { code: 'invalid_request', param: 'session_id', message: /1 to 512/ })
  }
  for (const id of ['a\n', '\0', 'a\u007f', 'a\u0085', 'half of \ud83d']) {
    t.throws(() => parseSessionId(id), { code: 'invalid_request', message: /control character/ }, id)
  }
})

t.test('an id that clients and intermediaries would change in a path is rejected', async (t) => {
  for (const id of ['.', '../../..', '/', 'a/', '/a', 'a//b', 'a/./b', 'a/../b', '../a', 'a/..']) {
    t.throws(() => parseSessionId(id), { code: 'invalid_request', message: /clients and servers remove/ }, id)
  }
})

t.test('names with another meaning in a URL are rejected', async (t) => {
  for (const id of RESERVED_SEGMENTS) {
    t.throws(() => parseSessionId(id), { code: 'invalid_request', param: 'session_id', message: /reserved/ })
    t.throws(() => parseSessionId(`${id}/x`), { code: 'invalid_request', message: /reserved/ })
  }
  t.ok(RESERVED_SEGMENTS.has('v1'))
  t.ok(RESERVED_SEGMENTS.has('sessions'))
})

t.test('an id has one form for headers, and no other text represents it', async (t) => {
  for (const id of IDS) {
    const encoded = encodeSessionId(id)
    t.match(encoded, /^[!-~]+$/)
    t.equal(decodeSessionId(encoded), id)
  }
  t.equal(encodeSessionId('AZaz09._~:-'), 'AZaz09._~:-')
  for (const other of ['a%62', 'a%2fb', 'a b', 'a/b', '%', '%e9'])
    t.equal(decodeSessionId(other), undefined, other)
})
