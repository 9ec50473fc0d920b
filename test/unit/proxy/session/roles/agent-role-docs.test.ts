import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { INFERENCES } from '../../../../../src/proxy/session/roles/agent-role-finder.ts'
import { AGENT_ROLE_RULES } from '../../../../../src/proxy/session/roles/declared-role.ts'

const page = readFileSync(join(import.meta.dirname, '../../../../../docs/lines.md'), 'utf8')

/** Returns the first column of the table below a heading. */
function listRules(heading: string): string[] {
  const section = page.split(/^## /m).find((part) => part.startsWith(heading)) ?? ''
  return [...section.matchAll(/^\| `(\w+)` \|/gm)].map(([, name]) => name!)
}

t.test('docs/lines.md lists the existing rules in order', async (t) => {
  t.same(
    listRules('Declared roles'),
    AGENT_ROLE_RULES.map(({ name }) => name),
  )
  t.same(listRules('Inferred roles'), INFERENCES)
})
