import t from 'tap'
import { checkServeConfig } from '../../../../src/proxy/config/check-serve.ts'
import { type Flags, loadConfig } from '../../../../src/proxy/config/load.ts'
import { SERVE } from '../../../../src/proxy/config/options/serve.ts'

const check = (flags: Flags) => () => checkServeConfig(loadConfig(SERVE, flags, {}))
const engineUrls = ['http://127.0.0.1:8000']

t.test('options that belong together are accepted', async (t) => {
  t.doesNotThrow(check({}))
  t.doesNotThrow(check({ engineUrls }))
  t.doesNotThrow(check({ playbook: 'answers.json' }))
  t.doesNotThrow(check({ mode: 'relay' }))
  t.doesNotThrow(check({ awaitEngines: true }))
  t.doesNotThrow(check({ awaitEngines: true, engineKind: 'vllm' }))
})

t.test('a proxy that other machines can reach needs keys, or an explicit option to be open', async (t) => {
  const needs = { code: 'config_invalid', message: /refusing to listen on .*Set --admin-key, .* --open$/ }
  for (const host of ['0.0.0.0', '::', '10.0.0.1']) {
    t.throws(check({ host }), needs)
    t.throws(check({ host, mode: 'relay' }), needs)
    t.doesNotThrow(check({ host, open: true }))
    t.doesNotThrow(check({ host, adminKeys: ['0123456789abcdef'] }))
  }
  for (const host of ['127.0.0.1', 'localhost', '::1']) t.doesNotThrow(check({ host }))
})

t.test('an option that would have no effect is rejected with an alternative', async (t) => {
  const invalid = (message: string) => ({ code: 'config_invalid', message: new RegExp(message) })
  t.throws(check({ mode: 'relay', engineUrls }), invalid('give engine-url to the workers'))
  t.throws(check({ mode: 'relay', engineKind: 'embedded' }), invalid('relay mode connects to no engine'))
  t.throws(check({ engineKind: 'embedded', engineUrls }), invalid('has no URL'))
  for (const other of [{ mode: 'relay' }, { engineUrls }, { engineKind: 'embedded' }]) {
    t.throws(check({ awaitEngines: true, ...other }), invalid('await-engines is for'))
  }
  t.throws(check({ playbook: 'answers.json', awaitEngines: true }), invalid('playbook is for'))
  t.throws(check({ playbook: 'answers.json', engineUrls }), invalid('playbook is for the embedded engine'))
  t.throws(check({ playbook: 'answers.json', mode: 'relay' }), invalid('playbook is for the embedded engine'))
})
