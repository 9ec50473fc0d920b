import { createHmac } from 'node:crypto'
import t from 'tap'
import { makeAgentKey, sessionOfAgentKey } from '../../../../src/http/access/agent-key.ts'
import { Keyring, NO_KEYS } from '../../../../src/http/access/keyring.ts'

const SETTINGS = {
  adminKeys: ['admin-key-number-one', 'admin-key-number-two'],
  workerKeys: ['worker-key-number-one'],
  viewKeys: ['view-key-number-one'],
  metricsKeys: ['metrics-key-number-one'],
  agentKeySecrets: ['agent-secret-number-two', 'agent-secret-number-one'],
}
const keyring = new Keyring(SETTINGS)
const bearer = (key: string) => ({ authorization: `Bearer ${key}` })

t.test('the key of an agent is the documented form, and the same in every process', async (t) => {
  const proof = createHmac('sha256', 'secret').update('llm-proxy agent key 1\nrollout-1').digest('base64url')
  t.equal(makeAgentKey('secret', 'rollout-1'), `lp-rollout-1-${proof}`)
  t.equal(keyring.agentKey('s'), makeAgentKey('agent-secret-number-two', 's'), 'made with the first secret')
  t.equal(new Keyring(NO_KEYS).agentKey('s'), undefined)
})

t.test('a key of any of the secrets names its session, whatever characters that has', async (t) => {
  for (const sessionId of ['s', 'a-b-c', '--', '~._:', 'x'.repeat(200), 'lp-s-lp']) {
    for (const secret of SETTINGS.agentKeySecrets) {
      t.equal(sessionOfAgentKey(SETTINGS.agentKeySecrets, makeAgentKey(secret, sessionId)), sessionId)
    }
  }
})

t.test('a key that was changed anywhere, or made with another secret, is none', async (t) => {
  const key = makeAgentKey(SETTINGS.agentKeySecrets[0]!, 'session-1')
  const accepts = (candidate: string) => sessionOfAgentKey(SETTINGS.agentKeySecrets, candidate) !== undefined
  t.ok(accepts(key))
  // Of the last character, too, whose lowest bits say nothing.
  const others = (character: string) => [...'ABCDEFGHabcd0123-_'].filter((other) => other !== character)
  for (let at = 0; at < key.length; at += 1) {
    const accepted = others(key[at]!).filter((other) => accepts(key.slice(0, at) + other + key.slice(at + 1)))
    t.same(accepted, [], `character ${at}`)
    t.notOk(accepts(key.slice(0, at)), `the first ${at} characters`)
  }
  for (const none of [
    makeAgentKey('another secret', 'session-1'),
    `${key}A`,
    ` ${key}`,
    `lp-${'A'.repeat(43)}`,
    '',
  ]) {
    t.notOk(accepts(none), none)
  }
})

t.test('a key is found as bearer token, as x-api-key, and as the password of a URL', async (t) => {
  const basic = (text: string) => ({ authorization: `Basic ${Buffer.from(text).toString('base64')}` })
  const isAdmin = { is: 'admin' }
  for (const headers of [
    bearer('admin-key-number-one'),
    { authorization: 'bearer  admin-key-number-one' },
    { 'x-api-key': 'admin-key-number-two' },
    basic(':admin-key-number-one'),
    basic('somebody:admin-key-number-one'),
  ]) {
    t.same(keyring.callerOf(headers), isAdmin)
  }
  t.same(keyring.callerOf(bearer('worker-key-number-one')), { is: 'worker' })
  t.same(keyring.callerOf(bearer(keyring.agentKey('s')!)), { is: 'agent', sessionId: 's' })
})

t.test('a client that sends a meaningless key beside its own is known by its own', async (t) => {
  const own = keyring.agentKey('s')!
  for (const headers of [
    { 'x-api-key': 'sk-none', ...bearer(own) },
    { 'x-api-key': own, ...bearer('EMPTY') },
  ]) {
    t.same(keyring.callerOf(headers), { is: 'agent', sessionId: 's' })
  }
})

t.test('whoever has no key, or none that is known, is a stranger', async (t) => {
  t.same(keyring.callerOf({}), { is: 'stranger', hasKey: false })
  t.same(keyring.callerOf({ authorization: 'Bearer' }), { is: 'stranger', hasKey: false })
  for (const key of [
    'admin-key-number-on',
    'admin-key-number-one ',
    'agent-secret-number-one',
    's',
    'lp-s',
  ]) {
    t.match(keyring.callerOf({ 'x-api-key': key }), { is: 'stranger', hasKey: true }, key)
  }
})

t.test('without keys everybody is anyone', async (t) => {
  t.same(new Keyring(NO_KEYS).callerOf(bearer('admin-key-number-one')), { is: 'anyone' })
})
