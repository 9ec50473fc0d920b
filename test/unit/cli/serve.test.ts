import t from 'tap'
import { formatHints } from '../../../src/cli/serve.ts'

t.test('the hints name the inspector only if the program has it', async (t) => {
  const url = 'http://127.0.0.1:8080'
  t.equal(
    formatHints(url, `${url}/ui`).at(-1),
    `Recorded data:       ${url}/ui in a browser; ${url}/sessions/my-session/trajectories for a trainer`,
  )
  t.equal(
    formatHints(url, undefined).at(-1),
    `Recorded data:       ${url}/sessions/my-session/trajectories for a trainer`,
  )
})
