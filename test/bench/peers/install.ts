/** Alternatives to llm-proxy from PyPI, each in a separate folder that is created once. */
import { join } from 'node:path'
import { NotForThisMachine, run } from '../../engines/vllm/install.ts'
import { CACHE, digest, installOnce } from '../../helpers/install-once.ts'

const LOOK_MS = 60_000

/**
 * Installs a peer.
 * @returns the folder of the installation, with programs in `bin`
 * @throws NotForThisMachine with the reason
 */
export async function installPeer(requirement: string, note: (text: string) => void): Promise<string> {
  const look = 'import ensurepip, platform, sys, venv; print(sys.version, platform.machine())'
  const python = await run('python3', ['-c', look], { limitMs: LOOK_MS }).catch((error) => {
    throw new NotForThisMachine('no Python 3 with venv', { cause: error })
  })
  const name = /^[\w-]+/.exec(requirement)![0]
  const venv = join(CACHE, `peer-${name}-${digest(requirement, python)}`)
  await installOnce(venv, async () => {
    note(`installing ${requirement} into ${venv}, once`)
    try {
      await run('python3', ['-m', 'venv', venv])
      const program = join(venv, 'bin/python')
      await run(program, ['-m', 'pip', 'install', '--quiet', 'uv'])
      await run(program, ['-m', 'uv', 'pip', 'install', '--quiet', '--python', program, requirement])
    } catch (error) {
      throw new NotForThisMachine(`${requirement} cannot be installed here: ${(error as Error).message}`)
    }
  })
  return venv
}
