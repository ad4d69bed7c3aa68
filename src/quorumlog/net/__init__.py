"""What both ends of every port say."""
