/** Frameworks for agents run the same small task with a tool: three requests, one row. */
import t from 'tap'
import { runFramework } from './frameworks/run-framework.ts'
import { hasPython } from './parts/install.ts'
import { checkRows } from './parts/session-checks.ts'

const FRAMEWORKS = { ai_sdk: true, pydantic_ai: await hasPython() }

for (const [name, canRun] of Object.entries(FRAMEWORKS)) {
  const skip = canRun ? false : 'there is no python3 with venv'
  t.test(`${name}: three requests with an untidy model are one row in token mode`, { skip }, async (t) => {
    const { version, turns, rows } = await runFramework(name, 'token', (url) => ({
      OPENAI_BASE_URL: `${url}/s/v1`,
      OPENAI_API_KEY: 'none',
    }))
    t.comment(version)
    t.strictSame(
      turns.map(({ status, dialect, completion_text: text, tool_calls: calls }) => [
        status,
        dialect,
        text.trim(),
        ...calls.map((call) => JSON.parse(call.function.arguments)),
      ]),
      [
        ['completed', 'chat', 'I add.', { a: 2, b: 3 }],
        ['completed', 'chat', '', { a: 5, b: 4 }],
        ['completed', 'chat', 'It is 9.'],
      ],
      'the agent used its tool',
    )
    t.strictSame(
      rows.map((row) => row.turns.map(({ index }) => index)),
      [[0, 1, 2]],
    )
    checkRows(t, turns, rows)
  })
}
