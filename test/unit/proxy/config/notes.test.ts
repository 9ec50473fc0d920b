import t from 'tap'
import { loadConfig } from '../../../../src/proxy/config/load.ts'
import { listNotes } from '../../../../src/proxy/config/notes.ts'
import { SERVE } from '../../../../src/proxy/config/options/serve.ts'

const notes = (flags: Record<string, string | string[]>) => listNotes(loadConfig(SERVE, flags, {}))

t.test('a local proxy with a database and a named engine has no warnings', async (t) => {
  for (const host of ['127.0.0.1', '127.1.2.3', 'localhost', '::1'])
    t.same(notes({ engineKind: 'embedded', host }), [])
  t.same(notes({ mode: 'relay' }), [])
})

t.test(
  'a default embedded engine, a database without a volume, and missing keys cause warnings',
  async (t) => {
    t.match(notes({}), [/No engine was named/])
    t.match(notes({ mode: 'relay', db: 'memory' }), [/end with this process/])
    for (const host of ['0.0.0.0', '::', '10.0.0.1', '127.evil.example']) {
      t.match(notes({ mode: 'relay', host }), [`Every client that reaches ${host} can read`])
      t.match(
        notes({ host }),
        [/^Every client that reaches/, /No engine/],
        'the warning about missing keys comes first',
      )
      const adminKeys = ['0123456789abcdef']
      const tls = { tlsCert: 'tls.crt', tlsKey: 'tls.key' }
      const closed = { mode: 'relay', host, adminKeys, agentKeySecrets: ['fedcba9876543210'] }
      t.same(notes({ ...closed, ...tls }), [])
      t.same(notes({ ...closed, trustedProxies: ['10.0.0.0/8'] }), [])
      t.match(notes(closed), [/^Keys and prompts cross the network in plain HTTP/])
      t.match(notes({ mode: 'relay', host, adminKeys, ...tls }), [/^Agents have no keys of their own/])
    }
  },
)

t.test(
  "in token mode with another model's tokens, the embedded engine is configured to reject them",
  async (t) => {
    t.match(notes({ tokenizer: 'Qwen/Qwen3-8B' }), [
      /^No engine was named: .*and rejects prompts that were tokenized with Qwen\/Qwen3-8B\. Name one with --engine-url\.$/,
    ])
    t.same(notes({ tokenizer: 'embedded' }), notes({}))
  },
)

t.test('a node that others cannot reach causes a warning', async (t) => {
  const node = { mode: 'relay', db: 'postgres://database/llm_proxy' }
  const note = /^Nodes on other machines do not reach this one at /
  t.match(notes(node), [note])
  t.match(notes({ ...node, nodeUrl: 'http://[::1]:8080' }), [note])
  t.match(notes({ ...node, nodeUrl: 'http://localhost:8080' }), [note])
  t.same(notes({ ...node, nodeUrl: 'http://10.0.0.1:8080' }), [])
  t.notMatch(notes({ ...node, host: '0.0.0.0' }).join(' '), /Nodes on other machines/)
  t.same(notes({ mode: 'relay', db: 'proxy.db' }), [], 'SQLite has one node')
})
