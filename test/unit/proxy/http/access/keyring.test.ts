import { createHmac } from 'node:crypto'
import t from 'tap'
import {
  createAgentKey,
  createKeyTag,
  verifyAgentKey,
} from '../../../../../src/proxy/http/access/agent-key.ts'
import { Keyring, NO_KEYS } from '../../../../../src/proxy/http/access/keyring.ts'

const SETTINGS = {
  adminKeys: ['admin-key-number-one', 'admin-key-number-two'],
  workerKeys: ['worker-key-number-one'],
  viewKeys: ['view-key-number-one'],
  metricsKeys: ['metrics-key-number-one'],
  agentKeySecrets: ['agent-secret-number-two', 'agent-secret-number-one'],
}
const keyring = new Keyring(SETTINGS)
const bearer = (key: string) => ({ authorization: `Bearer ${key}` })

t.test('the key of an agent has the documented form, and is the same in every process', async (t) => {
  const proof = createHmac('sha256', 'secret').update('llm-proxy agent key 1\nrollout-1').digest('base64url')
  t.equal(createAgentKey('secret', 'rollout-1'), `lp-rollout-1-${proof}`)
  t.equal(
    keyring.getAgentKey('s'),
    createAgentKey('agent-secret-number-two', 's'),
    'derived from the first secret',
  )
  t.equal(new Keyring(NO_KEYS).getAgentKey('s'), undefined)
})

t.test('a key that ends with its session has the tag in its proof, in the documented form', async (t) => {
  const tag = Buffer.from([0, 1, 2, 3, 4, 5, 6, 7])
  const hmac = createHmac('sha256', 'secret')
    .update('llm-proxy agent key 2\n')
    .update(tag)
    .update('rollout-1')
  const proof = Buffer.concat([tag, hmac.digest().subarray(0, 24)]).toString('base64url')
  t.equal(createAgentKey('secret', 'rollout-1', tag.toString('base64url')), `lp-rollout-1-${proof}`)
  t.not(createKeyTag(), createKeyTag())
})

t.test('a key of any of the secrets names its session, with any characters in its id', async (t) => {
  for (const sessionId of ['s', 'a-b-c', '--', '~._:', 'x'.repeat(200), 'lp-s-lp']) {
    for (const secret of SETTINGS.agentKeySecrets) {
      for (const tag of [null, createKeyTag()]) {
        const key = createAgentKey(secret, sessionId, tag)
        t.same(verifyAgentKey(SETTINGS.agentKeySecrets, key), { sessionId, tag })
      }
    }
  }
})

t.test('a key with a changed character, or of another secret, is invalid', async (t) => {
  const key = createAgentKey(SETTINGS.agentKeySecrets[0]!, 'session-1')
  const tagged = createAgentKey(SETTINGS.agentKeySecrets[0]!, 'session-1', createKeyTag())
  const accepts = (candidate: string) => verifyAgentKey(SETTINGS.agentKeySecrets, candidate) !== undefined
  // The characters include replacements of the last one, whose lowest bits are unused.
  const others = (character: string) => [...'ABCDEFGHabcd0123-_'].filter((other) => other !== character)
  for (const good of [key, tagged]) {
    t.ok(accepts(good))
    for (let index = 0; index < good.length; index += 1) {
      const accepted = others(good[index]!).filter((other) =>
        accepts(good.slice(0, index) + other + good.slice(index + 1)),
      )
      t.same(accepted, [], `character ${index}`)
      t.notOk(accepts(good.slice(0, index)), `the first ${index} characters`)
    }
  }
  for (const none of [
    createAgentKey('another secret', 'session-1'),
    `${key}A`,
    ` ${key}`,
    `lp-${'A'.repeat(43)}`,
    '',
  ]) {
    t.notOk(accepts(none), none)
  }
})

t.test('a key is accepted as bearer token, as x-api-key, and as the password of a URL', async (t) => {
  const basic = (text: string) => ({ authorization: `Basic ${Buffer.from(text).toString('base64')}` })
  const isAdmin = { is: 'admin' }
  for (const headers of [
    bearer('admin-key-number-one'),
    { authorization: 'bearer  admin-key-number-one' },
    { 'x-api-key': 'admin-key-number-two' },
    basic(':admin-key-number-one'),
    basic('somebody:admin-key-number-one'),
  ]) {
    t.same(keyring.identify(headers), isAdmin)
  }
  t.same(keyring.identify(bearer('worker-key-number-one')), { is: 'worker' })
  t.same(keyring.identify(bearer(keyring.getAgentKey('s')!)), { is: 'agent', sessionId: 's', keyTag: null })
})

t.test(
  'a client that sends a meaningless key beside a valid one is authenticated by the valid one',
  async (t) => {
    const own = keyring.getAgentKey('s')!
    for (const headers of [
      { 'x-api-key': 'sk-none', ...bearer(own) },
      { 'x-api-key': own, ...bearer('EMPTY') },
    ]) {
      t.same(keyring.identify(headers), { is: 'agent', sessionId: 's', keyTag: null })
    }
  },
)

t.test('a client without a key, or with an unknown one, is unauthenticated', async (t) => {
  t.same(keyring.identify({}), { is: 'stranger', hasKey: false })
  t.same(keyring.identify({ authorization: 'Bearer' }), { is: 'stranger', hasKey: false })
  for (const key of [
    'admin-key-number-on',
    'admin-key-number-one ',
    'agent-secret-number-one',
    's',
    'lp-s',
  ]) {
    t.match(keyring.identify({ 'x-api-key': key }), { is: 'stranger', hasKey: true }, key)
  }
})

t.test('without configured keys every client has every role', async (t) => {
  t.same(new Keyring(NO_KEYS).identify(bearer('admin-key-number-one')), { is: 'anyone' })
})
