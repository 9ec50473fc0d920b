/** The released Harbor reads the proxy's exported trajectories. */
import { writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { recordTurn, startSessionsApi } from '../../helpers/sessions-api.ts'
import { recordToolSession } from '../../helpers/tool-session.ts'
import { findPython312, installFromPyPI } from '../parts/install.ts'
import { runProgram } from '../parts/programs.ts'

const READ = `
import json, sys
from harbor.models.trajectories import Trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator
validator = TrajectoryValidator()
valid = validator.validate(sys.argv[1])
read = Trajectory.model_validate_json(open(sys.argv[1]).read()) if valid else None
print(json.dumps({"errors": validator.errors, "read": read and read.to_json_dict()}))
`

const python = await findPython312()

if (python === undefined) {
  t.pass('left out: there is no Python 3.12, which Harbor needs')
} else {
  const { folder } = await installFromPyPI('harbor', [], { python })

  t.test('Harbor accepts a session in ATIF, and reads its content', async (t) => {
    const api = await startSessionsApi(t)
    await recordToolSession(api, 'a', 1)
    await api.sessions.create({ sessionId: 'images' })
    const parts = ['https://example.com/a.png', 'data:image/png;base64,AAAA'].map((url) => ({
      type: 'image_url',
      image_url: { url },
    }))
    await recordTurn(api.store, 'images', 0, {
      requestMessages: [JSON.stringify({ role: 'user', content: parts })],
    })
    for (const query of [
      'a/export?format=atif',
      'a/export?format=atif&ids=false',
      'images/export?format=atif',
    ]) {
      const text = await (await fetch(`${api.url}/sessions/${query}`)).text()
      const path = join(t.testdir({}), 'trajectory.json')
      writeFileSync(path, text)
      const program = {
        command: join(folder, 'bin/python'),
        args: ['-c', READ, path],
        cwd: tmpdir(),
        env: process.env,
      }
      const { output } = await runProgram(program, 60_000)
      const { errors, read } = JSON.parse(output)
      t.strictSame(errors, [], query)
      t.strictSame(withoutNull(JSON.parse(text)), withoutNull(read), 'Harbor retains all exported values')
    }
  })
}

/** Removes null values, as Harbor does when it writes a trajectory. */
function withoutNull(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value, (_key, each) => (each === null ? undefined : each)))
}
