"""What a service tells Prometheus, as a table."""

from prometheus_client.parser import text_string_to_metric_families as families


def values(text):
    """The samples of an exposition: by name, with the labels that it has."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families(text)
        for sample in family.samples
    }


def series(method, route, status):
    """The name of a counter of requests."""
    labels = ("method", method), ("route", route), ("status", str(status))
    return "distscan_http_requests_total", *labels
