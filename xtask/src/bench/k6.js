// One constant POST per iteration, at the lowest CPU cost of k6: without checks and system tags,
// and with discarded bodies. Rate 0 means closed loop.
import http from 'k6/http';
import { Counter } from 'k6/metrics';

const slow = new Counter('slow');
const rate = Number('@RATE@');
const duration = '@SECONDS@s';
const workers = Number('@WORKERS@');

export const options = {
  discardResponseBodies: true,
  scenarios: {
    main: rate === 0
      ? { executor: 'constant-vus', vus: workers, duration: duration, gracefulStop: '0s' }
      : {
          executor: 'constant-arrival-rate', rate: rate, timeUnit: '1s', duration: duration,
          preAllocatedVUs: workers, maxVUs: workers, gracefulStop: '5s',
        },
  },
  summaryTrendStats: ['avg', 'p(99)', 'max'],
};

const parameters = { headers: { 'Content-Type': 'application/json' } };
const isOpenLoop = rate !== 0;

export default function () {
  const response = http.post('@URL@', '@BODY@', parameters);
  if (isOpenLoop && response.timings.duration > 100) slow.add(1);
}
