import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { BALANCERS } from '../../../deploy/balancers/make.ts'

const FOLDER = join(import.meta.dirname, '../../../deploy/balancers')
const FILES = { haproxy: 'haproxy.cfg', nginx: 'nginx.conf', envoy: 'envoy.yaml' } as const
/** The names in deploy.yaml. */
const NODES = [0, 1, 2, 3].map((ordinal) => `llm-proxy-${ordinal}.llm-proxy-nodes:8080`)

for (const [kind, file] of Object.entries(FILES)) {
  t.test(`deploy/balancers/${file} is what the generator makes (UPDATE=1 writes it)`, async (t) => {
    const made = BALANCERS[kind as keyof typeof FILES]({
      listen: ':8080',
      nodes: NODES,
    })
    if (process.env.UPDATE) writeFileSync(join(FOLDER, file), made)
    t.equal(readFileSync(join(FOLDER, file), 'utf8'), made)
  })
}
