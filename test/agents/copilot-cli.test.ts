/** GitHub Copilot CLI speaks each of three dialects to a provider of the user's. */
import t from 'tap'
import { IS_FULL } from '../helpers/tier.ts'
import { runAgent } from './parts/agent.ts'
import { HELLO, testFileTask, testLostEngine } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { copilotAgent } from './parts/known-agents.ts'
import { ONE_SETUP, TWO_SETUPS } from './parts/rig.ts'
import { playbookOf, taskIn } from './parts/script.ts'
import { checkRows } from './parts/session-checks.ts'

const installed = await installFromNpm('@github/copilot')

const steps = [
  {
    thinks: 'The file comes first.',
    says: 'I write the script.',
    calls: [{ tool: 'create', arguments: { path: '$<folder>/hello.sh', file_text: HELLO } }],
  },
  {
    calls: [{ tool: 'bash', arguments: { command: 'sh hello.sh > printed.txt', description: 'Run it' } }],
  },
  {
    thinks: 'Now I read what it printed.',
    calls: [{ tool: 'view', arguments: { path: '$<folder>/printed.txt' } }],
  },
  { says: 'Done: it says 42.' },
]

await testFileTask(copilotAgent(installed), { steps }, ONE_SETUP)
await testLostEngine(copilotAgent(installed), { steps })

if (IS_FULL) {
  // In chat mode its history over Responses repeats reasoning as text where the model wrote no text.
  for (const dialect of ['messages', 'responses'] as const)
    await testFileTask(copilotAgent(installed, dialect), { steps }, TWO_SETUPS.slice(1))
}

for (const dialect of ['chat', 'responses', 'messages'] as const) {
  const skip = IS_FULL ? false : 'runs with FULL=1'
  await t.test(`Copilot CLI --continue extends its row, ${dialect}`, { skip }, async (t) => {
    const script = '"$@" -p "$TASK" && "$@" --continue -p "$AGAIN"'
    const agent = copilotAgent(installed, dialect, script)
    const again = [steps[2]!, { says: 'It still says 42.' }]
    const rules = [
      ...playbookOf(again, 'untidy', 'Continue in the folder (?<folder>/[\\w./-]+)').rules,
      ...playbookOf(steps, 'untidy').rules,
    ]
    const setup = { mode: 'local', prompts: 'token', playbook: { rules } } as const
    const { code, output, turns, rows } = await runAgent(t, agent, setup, taskIn)
    t.equal(code, 0, 'it ends well', { output })
    t.equal(turns.length, steps.length + again.length)
    t.equal(rows.length, 1)
    checkRows(t, turns, rows)
  })
}
