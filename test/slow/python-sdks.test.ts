/** Responses conform to the types of OpenAI's and Anthropic's current Python packages from PyPI. */
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { hasPython, installFromPyPI } from '../agents/parts/install.ts'
import { SAMPLE_RESPONSES } from '../helpers/sample-responses.ts'
import { respond } from '../helpers/scripted-backend.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'

const PROGRAM = join(import.meta.dirname, 'python_sdks.py')

t.test("the Python SDKs' types accept every response, complete and streamed", async (t) => {
  if (!(await hasPython())) {
    t.pass('the SDKs are not tested', { skip: 'there is no python3 with venv' })
    return
  }
  const { folder } = await installFromPyPI('anthropic', ['openai'])
  const { url, backend } = await startSessionsApi(t)
  const cases = Object.keys(SAMPLE_RESPONSES)
  backend.script = ({ sessionId }) => respond(SAMPLE_RESPONSES[cases[Number(sessionId.slice(1))]!]!)
  const { stdout } = await promisify(execFile)(join(folder, 'bin/python'), [PROGRAM], {
    env: { ...process.env, PROXY_URL: url, CASES: JSON.stringify(cases) },
    timeout: 400_000,
  })
  t.match(stdout, /\ndone\n$/)
})
